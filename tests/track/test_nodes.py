"""Lists of machines, as schedulers write them."""

import pytest

from aboard.track.nodes import expanded, nodes_of_job, program_of, sends_work_elsewhere


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("", []),
        ("node1", ["node1"]),
        ("node1,node2", ["node1", "node2"]),
        ("node[01-03,07],login", ["node01", "node02", "node03", "node07", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("r[1-2]n[3,5]-ib", ["r1n3-ib", "r1n5-ib", "r2n3-ib", "r2n5-ib"]),
        ("x[a-b]", []),
    ],
)
def test_lists_of_machines(listed: str, names: list[str]) -> None:
    assert list(expanded(listed)) == names


def test_a_list_without_end_is_not_followed_to_it() -> None:
    assert len(list(expanded("n[1-99999999]"))) == 100_000


def test_names_are_known_short_and_long() -> None:
    assert nodes_of_job({"LSB_HOSTS": "a.cluster a.cluster b"}) == {"a", "a.cluster", "b"}
    assert nodes_of_job({"PBS_NODEFILE": "/nowhere"}) == set()


@pytest.mark.parametrize(
    ("command", "elsewhere"),
    [
        (["/usr/bin/docker", "run"], True),
        (["sudo", "-E", "podman", "run"], True),
        (["env", "A=1", "srun", "python", "train.py"], True),
        (["python", "train.py", "--backend", "mpirun"], False),
        (["docker.py"], False),
        ([], False),
    ],
)
def test_programs_that_start_others_elsewhere(command: list[str], elsewhere: bool) -> None:
    assert sends_work_elsewhere([program_of(command)]) is elsewhere
