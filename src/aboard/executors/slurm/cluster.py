"""A Slurm cluster: its settings, its commands, and their output.

`boards` and `batch` use `sbatch`, `squeue` and `scancel`, and `sacct` for jobs that Slurm has
forgotten. Slurm stores no secrets of a job: those are in files that only the user can read.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from aboard.executors.base import EngineSettings, ExecutorError
from aboard.executors.process import inherited
from aboard.executors.start import why
from aboard.runs.units import format_memory
from aboard.system import requires

with requires("pydantic"):
    from pydantic import AfterValidator, ConfigDict, Field, Strict
    from pydantic.dataclasses import dataclass as settings_class

_QUERY_SECONDS = 20.0
_SUBMIT_SECONDS = 60.0
_LONGEST_MESSAGE = 2000
_WARNING_SECONDS, _SHORT_WARNING_SECONDS = 60, 10  # before the time limit
_SHORT_SECONDS = 300  # of a time limit

WAITING = re.compile(r"CONFIGURING|PENDING|REQUEUED|REQUEUE_\w+|RESV_DEL_HOLD|SPECIAL_EXIT")
ENDED = re.compile(
    r"BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|LAUNCH_FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED"
    r"|RECONFIG_FAIL|REVOKED|TIMEOUT"
)
# Widths, not separators, which older versions of squeue do not support.
_COLUMNS = {
    "JobID": 20,
    "ArrayJobID": 20,
    "ArrayTaskID": 240,
    "State": 20,
    "Reason": 80,
    "exit_code": 16,
    "RestartCnt": 8,
    "TimeLimit": 24,
    "BatchHost": 80,
    "Name": 160,
    "Comment": 240,
}
_WORKDIR = {"WorkDir": 4096}
PROXY = re.compile(r"\w+_proxy", re.IGNORECASE)
OF_NODE = {"TMPDIR", "TMP", "TEMP", "ABOARD_CACHE"}
OF_SLURM = re.compile(r"(SLURM|SBATCH|SQUEUE|SCANCEL|SINFO|SACCT)_")
_OWN_OPTIONS = re.compile(
    r"(-J|-o|-D|-a|--job-name|--comment|--output|--open-mode|--chdir|--array|--wrap|--export|--signal"
    r"|--parsable|--wait)(=.*)?"
)
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_OVER_MEMORY = re.compile(rb"exceeded memory limit \((\d+) > \d+\)")
_OUT_OF_MEMORY = re.compile(rb"exceeded memory limit|oom.kill", re.IGNORECASE)
# Messages of scancel about a job that is ending; for some it prints none.
_GONE = re.compile(
    r"invalid job id|already complet|can not be altered now|without a message", re.IGNORECASE
)
# Messages of its commands if slurmctld does not answer, as opposed to rejections.
_SILENT = re.compile(
    r"unable to contact slurm controller|timed out|zero bytes were transmitted|in standby mode"
    r"|connection refused|not connected",
    re.IGNORECASE,
)
_NEVER_BEGINS = {"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit"}
TIME_IS_UP = "its Slurm job reached the time limit"
_PING = "Check slurmctld with: scontrol ping"


def _checked_time(text: str) -> str:
    limit_seconds(text)
    return text


def _checked_options(options: tuple[str, ...]) -> tuple[str, ...]:
    for option in options:
        if not option.startswith("-") or _OWN_OPTIONS.fullmatch(option):
            raise ValueError(f"{option!r} is not an option for sbatch here. Write --NAME=VALUE.")
    return options


def limit_seconds(text: str) -> float:
    """Return the seconds of a time limit in Slurm's notation: minutes, H:M:S, D-H:M:S."""
    if text.lower() in {"infinite", "unlimited"}:
        return math.inf
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a Slurm time, such as 30, 4:00:00 or 1-12:00:00.")
    days, *rest = found.groups()
    given = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*given, 0, 0][:3]
        return int(days) * 86400.0 + hours * 3600 + minutes * 60 + seconds
    if len(given) == 3:
        return given[0] * 3600.0 + given[1] * 60 + given[2]
    return given[0] * 60.0 + (given[1] if len(given) == 2 else 0)


Text = Annotated[str, Strict()]


@settings_class(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class SlurmSettings(EngineSettings):
    """The settings below `[executors.slurm]`; empty ones are left to Slurm."""

    partition: Annotated[Text, Field(description="Partition, or several separated by commas.")] = ""
    account: Annotated[Text, Field(description="Account that is charged.")] = ""
    qos: Annotated[Text, Field(description="Quality of service.")] = ""
    time: Annotated[
        Text,
        AfterValidator(lambda text: _checked_time(text) if text else text),
        Field(
            description="Time limit of a board without a timeout, and of a job without `--time`, in"
            " Slurm's notation."
        ),
    ] = ""
    memory: Annotated[
        Text,
        Field(
            pattern=r"^([0-9]+[KMGT]?)?$",
            description="Default memory of a board or a task, in Slurm's notation, such as `4G`.",
        ),
    ] = ""
    cpus: Annotated[
        int,
        Strict(),
        Field(ge=1, description="Default number of CPUs of a board or a task."),
    ] = 1
    gpu: Annotated[
        Text,
        Field(
            pattern=r"^[A-Za-z0-9_.:-]+$",
            description="Generic resource that `--gpus` of a job requests, such as `gpu:a100`.",
        ),
    ] = "gpu"
    constraint: Annotated[Text, Field(description="Features that nodes must have.")] = ""
    reservation: Annotated[Text, Field(description="Reservation to use.")] = ""
    nodelist: Annotated[Text, Field(description="Nodes to use.")] = ""
    exclude: Annotated[Text, Field(description="Nodes to exclude.")] = ""
    python: Annotated[
        Text,
        Field(description="Interpreter on the nodes; by default that of the hub or the submitter."),
    ] = ""
    interface: Annotated[
        Text,
        Field(
            description="Network interface of the nodes on which boards listen, such as `ib0`; by"
            " default all, and the hub uses the node's host name."
        ),
    ] = ""
    options: Annotated[
        tuple[Text, ...],
        AfterValidator(_checked_options),
        Field(description='Additional options of `sbatch`, such as `["--exclusive"]`.'),
    ] = ()
    setup: Annotated[
        tuple[Text, ...],
        Field(
            description="Shell lines that run on the node before a board or a task, in a login"
            ' shell, such as `["module load python"]`.'
        ),
    ] = ()
    directory: Annotated[
        Path | None,
        Field(
            description="Directory that the nodes share, for the files of running boards, and of"
            " jobs that log to a bucket; by default the hub's directory, or that of the submitter."
        ),
    ] = None
    programs: Annotated[
        Path | None, Field(description="Directory of `sbatch` and the others, if not in PATH.")
    ] = None
    configuration: Annotated[
        Path | None, Field(description="Configuration file of Slurm, as in SLURM_CONF.")
    ] = None


def job_options(
    settings: SlurmSettings,
    *more: str,
    name: str,
    comment: str,
    output: Path,
    workdir: Path,
    time: float | None = None,
    memory: int | None = None,
    cpus: float | None = None,
) -> list[str]:
    """Return the options of sbatch; the settings have the defaults of the arguments."""
    seconds = time or (limit_seconds(settings.time) if settings.time else math.inf)
    warning = _SHORT_WARNING_SECONDS if seconds < _SHORT_SECONDS else _WARNING_SECONDS
    values = {
        "job-name": name,
        "comment": comment,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "time": f"{math.ceil(time / 60)}" if time else settings.time,
        "mem": settings.memory if memory is None else f"{math.ceil(memory / 2**20)}M",
        "cpus-per-task": f"{math.ceil(cpus)}" if cpus else "",
        "constraint": settings.constraint,
        "reservation": settings.reservation,
        "nodelist": settings.nodelist,
        "exclude": settings.exclude,
        "signal": f"B:USR1@{warning}",
        "output": str(output),
        "chdir": str(workdir),
    }
    fixed = ["--parsable", "--export=ALL", "--open-mode=append", *more]
    given = [f"--{option}={value}" for option, value in values.items() if value]
    return [*fixed, *given, *settings.options]


def script_lines(name: str) -> list[str]:
    """Return a batch script, preceded by the functions of `child.sh`."""
    here = Path(__file__).parent
    return [(here / part).read_text(encoding="utf-8") for part in ("child.sh", name)]


@dataclass(frozen=True)
class Job:
    """A line of squeue or sacct."""

    id: str
    state: str
    array: str = ""
    indices: str = ""
    """The array tasks of this line: `7`, or `9-200%8` if they are pending."""
    reason: str = ""
    code: str = ""
    restarts: int = 0
    limit: str = ""
    node: str = ""
    name: str = ""
    comment: str = ""
    workdir: str = ""

    @staticmethod
    def of(line: bytes) -> Job | None:
        """Parse a line of squeue; return None if that fails.

        The user's other jobs are listed too, and their comments may contain line breaks.
        """
        # Slurm counts bytes, and names may contain non-ASCII characters.
        values, begin = [], 0
        for width in (_COLUMNS | _WORKDIR).values():
            values.append(line[begin : begin + width].decode("utf-8", "replace").strip())
            begin += width
        number, array, indices, state, reason, code, restarts, *others = values
        if not (number.isdecimal() and restarts.isdecimal()):
            return None
        if indices in {"", "N/A"}:
            array = indices = ""
        return Job(number, state, array, indices, reason, code, int(restarts), *others)

    @property
    def unit(self) -> str:
        """The id of the job or array task, for messages."""
        return f"{self.array}_{self.indices}" if self.array else self.id

    def why_waiting(self) -> str:
        reason = self.reason if self.state == "PENDING" else self.state
        if reason == "None":  # not scheduled yet
            reason = f"job {self.array or self.id} is queued"
        elif reason in _NEVER_BEGINS:
            reason += ": the request exceeds the limits of its partition; it may wait forever"
        return f"requeued by Slurm: {reason}" if self.restarts else reason

    def end_reason(self) -> str:
        """Return why Slurm ended it; empty if it exited by itself, or did not begin."""
        if self.state in {"COMPLETED", "FAILED"}:
            return ""
        about = f" ({self.reason})" if self.reason else ""
        reasons = {
            "CANCELLED": f"its job {self.unit} was cancelled",
            "NODE_FAIL": f"its node {self.node} failed",
            "PREEMPTED": f"its job {self.unit} was preempted by one of a higher priority",
            "TIMEOUT": f"{TIME_IS_UP}: {self.limit}",
        }
        return reasons.get(self.state, f"Slurm ended its job {self.unit}: {self.state}{about}")

    def why_not_begun(self, place: Path) -> str:
        about = f" ({self.reason})" if self.reason else ""
        return (
            f"its job {self.unit} did not begin on {self.node}{about}: check that"
            f" the nodes see {place}, or set directory in the settings"
        )

    def label(self) -> tuple[str, str, int] | None:
        """Return the hub, the board and the attempt."""
        parts = self.comment.split(":")
        if len(parts) != 4 or parts[0] != "aboard" or not parts[3].isdecimal():
            return None
        return parts[1], parts[2], int(parts[3])

    def exit_code(self) -> int | None:
        """Return the exit code of the script; None if Slurm ended the job without one."""
        if ":" in self.code:
            code, number = (int(part) for part in self.code.split(":")[:2])
        else:
            status = int(self.code or 0)
            code, number = status >> 8, status & 0x7F
        if number:
            return -number
        if not code and self.state != "COMPLETED":
            return None
        return exit_code_of(str(code))


def exit_code_of(text: str | None) -> int | None:
    """Parse an exit code that a shell reports; negative for a signal."""
    if not text:
        return None
    code = int(text)
    return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else code


def why_out_of_memory(state: str, output: bytes, memory: int | None) -> str:
    """Return how a job exceeded its memory, from its last output; empty if it did not."""
    if state != "OUT_OF_MEMORY" and not _OUT_OF_MEMORY.search(output):
        return ""
    used = _OVER_MEMORY.search(output)
    if memory is None:
        return "it used more than Slurm's default amount of memory: request more"
    limit = format_memory(memory)
    if used is None:
        return f"it used more than {limit} of memory"
    return f"used {format_memory(int(used[1]), memory)} of {limit} memory"


@dataclass(frozen=True)
class Cluster:
    """The commands of one cluster; each raises `ExecutorError` if Slurm does not answer."""

    programs: Path | None
    configuration: Path | None

    @staticmethod
    def of(settings: SlurmSettings) -> Cluster:
        return Cluster(settings.programs, settings.configuration)

    def jobs(self, users: Collection[int] = (), *, workdirs: bool = False) -> dict[str, Job]:
        """Return all jobs of these users, or of this one, that Slurm remembers; one query."""
        columns = _COLUMNS | (_WORKDIR if workdirs else {})
        listed = ",".join(f"{name}:{width}" for name, width in columns.items())
        whose = ",".join(map(str, sorted(users or {os.getuid()})))
        options = ["--noheader", f"--user={whose}", "--states=all", f"--Format={listed}"]
        jobs = [Job.of(line) for line in self._run("squeue", options).split(b"\n")]
        found = {job.id: job for job in jobs if job is not None}
        cut = [job for job in found.values() if len(job.indices) >= _COLUMNS["ArrayTaskID"]]
        if cut:
            options = ["--noheader", f"--jobs={','.join(job.id for job in cut)}", "--format=%A|%K"]
            for line in self._run("squeue", options).decode("utf-8", "replace").splitlines():
                number, _, indices = line.partition("|")
                if number in found:
                    found[number] = replace(found[number], indices=indices)
        return found

    def accounts(self, gone: Collection[str]) -> list[Job]:
        """Return the ends of jobs that squeue no longer lists, from the accounting."""
        fields = "JobID,State,ExitCode,NodeList,Timelimit"
        options = ["--allocations", "--noheader", "--parsable2", f"--format={fields}"]
        try:
            found = self._run("sacct", [*options, "--jobs", ",".join(gone)])
        except ExecutorError:  # many clusters have no accounting
            return []
        jobs = []
        for line in found.decode("utf-8", "replace").splitlines():
            number, state, code, node, limit = line.split("|")
            word = state.partition(" ")[0]  # "CANCELLED by 1000"
            if ENDED.fullmatch(word):  # some never get an end
                array, _, indices = number.rpartition("_")
                jobs.append(
                    Job(number, word, array, indices if array else "", "", code, 0, limit, node)
                )
        return jobs

    def largest_array(self) -> int:
        """Return the largest index of an array task; 0 without arrays."""
        output = self._run("scontrol", ["show", "config"]).decode("utf-8", "replace")
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", output, re.MULTILINE)
        return max(int(found[1]) - 1, 0) if found else 0

    def node_counts(self) -> dict[str, int]:
        """Return the number of nodes per partition; the default one also has an empty name."""
        output = self._run("scontrol", ["show", "partition", "--oneliner"])
        counts: dict[str, int] = {}
        for line in output.decode("utf-8", "replace").splitlines():
            values = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if (total := values.get("TotalNodes", "")).isdecimal():
                names = [values.get("PartitionName", "")]
                names += [""] if values.get("Default") == "YES" else []
                counts |= dict.fromkeys(names, int(total))
        return counts

    def submit(self, options: list[str], script: str, lock: int) -> str:
        """Submit a script, and return the id of its job.

        From a file, not a pipe: a killed caller would leave half a script. `sbatch` inherits the
        lock, so that the next attempt waits for it and finds the job.
        """
        with tempfile.TemporaryFile() as file:
            file.write(script.encode())
            file.seek(0)
            output = self._run("sbatch", options, _SUBMIT_SECONDS, stdin=file, pass_fds=(lock,))
        number = output.decode("utf-8", "replace").strip().partition(";")[0]
        if not number.isdecimal():
            raise ExecutorError(f"sbatch returned no job id: {number[:200]!r}. See Slurm's log.")
        return number

    def cancel(self, *arguments: str) -> None:
        try:
            self._run("scancel", list(arguments))
        except ExecutorError as error:
            if not _GONE.search(str(error)):
                raise

    def version(self) -> str:
        output = self._run("sinfo", ["--version"]).decode("utf-8", "replace")
        return output.strip().rpartition(" ")[2]

    def partitions(self) -> dict[str, str]:
        found = {}
        output = self._run("sinfo", ["--noheader", "--format=%R|%a|%l|%C"])
        for line in output.decode("utf-8", "replace").splitlines():
            name, available, limit, cpus = line.split("|")
            _, idle, _, total = cpus.split("/")
            is_up = available == "up"
            free = f"{idle} of {total} CPUs free, time limit {limit}" if is_up else available
            found[name] = free
        return found

    def _run(
        self,
        program: str,
        arguments: list[str],
        seconds: float | None = None,
        **options: Any,
    ) -> bytes:
        seconds = seconds or _QUERY_SECONDS
        path = self.programs / program if self.programs else program
        environment = _variables(for_job=program == "sbatch")
        environment["SLURM_BITSTR_LEN"] = "0"  # no limit for task ranges; default 64
        if self.configuration:
            environment["SLURM_CONF"] = str(self.configuration)
        options.setdefault("stdin", subprocess.DEVNULL)
        try:
            done: subprocess.CompletedProcess[bytes] = subprocess.run(
                [path, *arguments],
                env=environment,
                capture_output=True,
                timeout=seconds,
                check=False,
                **options,
            )
        except subprocess.TimeoutExpired:
            raise ExecutorError(
                f"Slurm does not answer: {program} took longer than {seconds:g} seconds. {_PING}"
            ) from None
        except OSError as error:
            raise ExecutorError(
                f"{path}: {why(error)}. Install Slurm's commands on this machine, or set "
                "programs in [executors.slurm]."
            ) from error
        if done.returncode:
            raise ExecutorError(_complaint(program, done.stderr))
        return done.stdout


def _complaint(program: str, stderr: bytes) -> str:
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    output = " | ".join(line.removeprefix(f"{program}: ").removeprefix("error: ") for line in lines)
    output = output[:_LONGEST_MESSAGE] or "without a message"
    if _SILENT.search(output):
        return f"Slurm does not answer: {program}: {output}. {_PING}"
    return f"{program} failed: {output}. Check the settings in [executors.slurm]."


def _variables(*, for_job: bool) -> dict[str, str]:
    """Return the environment of a Slurm command, with `for_job` also that of the job.

    This process may itself run in a job, whose variables would become options. Proxy variables may
    contain a password, so they go through a file.
    """
    variables = dict(os.environ)
    if for_job:
        variables = {
            name: value
            for name, value in inherited(variables).items()
            if not PROXY.fullmatch(name) and name not in OF_NODE
        }
    kept = {name: one for name, one in variables.items() if not OF_SLURM.match(name)}
    if "SLURM_CONF" in os.environ:
        kept["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return kept
