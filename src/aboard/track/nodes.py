"""On which other machines a program may run: what a scheduler says, and what its command is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "LSB_HOSTS")
_FILES = ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE", "COBALT_NODEFILE")
_MOST_NODES = 100_000
_LAUNCHERS = {
    *("docker", "podman", "nerdctl", "singularity", "apptainer", "enroot", "shifter", "ch-run"),
    *("udocker", "lxc", "kubectl", "oc", "sky", "dstack", "ray", "horovodrun", "deepspeed"),
    *("srun", "salloc", "sbatch", "qsub", "qrsh", "bsub", "jsrun", "lrun", "aprun", "flux"),
    *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "prterun"),
    *("ssh", "pdsh", "dsh", "clush", "parallel", "dask-ssh"),
}
"""Programs that start others in a container, or on another machine."""
_WRAPPERS = {"sudo", "env", "nice", "nohup", "time", "exec", "stdbuf", "setsid"}
_PART = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*")


def sends_work_elsewhere(programs: Iterable[str]) -> bool:
    """Say whether one of these programs starts others in a container, or on another machine."""
    return any(PurePath(program).name in _LAUNCHERS for program in programs)


def program_of(command: Sequence[str]) -> str:
    """Return the program that a command is about, without `sudo`, `env` and the like before it."""
    for word in command:
        if PurePath(word).name not in _WRAPPERS and not word.startswith("-") and "=" not in word:
            return word
    return ""


def nodes_of_job(environment: Mapping[str, str]) -> set[str]:
    """Return the machines that a scheduler gave to this job, with their names short and long."""
    nodes: set[str] = set()
    for variable in _LISTS:
        for part in environment.get(variable, "").split():
            nodes.update(expanded(part))
    for variable in _FILES:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path := environment.get(variable):
                lines = Path(path).read_text().splitlines()
                nodes.update(words[0] for line in lines if (words := line.split()))
    return nodes | {node.partition(".")[0] for node in nodes}


def expanded(listed: str) -> Iterator[str]:
    """Yield the names in a list as Slurm writes it: `node[01-03,07],login`."""
    left = _MOST_NODES
    for part in _PART.findall(listed):
        for name in _names(part) if part else ():
            if not left:
                return
            left -= 1
            yield name


def _names(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield before
        return
    numbers, _, after = rest.partition("]")
    for item in numbers.split(","):
        first, _, last = item.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            for number in range(int(first), int(last or first) + 1):
                for end in _names(after):
                    yield f"{before}{number:0{len(first)}}{end}"
