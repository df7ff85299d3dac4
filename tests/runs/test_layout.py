"""Names of runs: what may be one, and how many processes get one each."""

import subprocess
import sys
from pathlib import Path

import pytest

from aboard.runs.layout import (
    BadName,
    RunExists,
    check_name,
    claim,
    claim_next,
    create_record,
    unclaimed_name,
)
from aboard.runs.manifest import Manifest, read
from aboard.storage import open_storage
from aboard.storage.local import LocalStorage

HERE = Path(__file__).parent


def claimed_by_many(root: str, count: int, at_once: int, threads: int = 1) -> list[str]:
    numbers = map(str, (count, at_once, threads))
    command = [sys.executable, str(HERE / "claiming.py"), root, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def test_names_follow_each_other(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "new"))
    names = [claim_next(storage, "cifar10", Manifest).name for _ in range(20)]
    assert names == [f"run{number}" for number in range(1, 21)]
    assert claim_next(storage, "other", Manifest).name == "run1"
    assert read(storage, "cifar10/run7").name == "run7"


def test_a_directory_with_files_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "cifar10" / "run1" / "train"
    foreign.mkdir(parents=True)
    (foreign / "events.out.tfevents.1700000000.host").write_bytes(b"x")
    (tmp_path / "cifar10" / "run2").mkdir()
    storage = open_storage(str(tmp_path))
    assert claim_next(storage, "cifar10", Manifest).name == "run2"
    assert [path.name for path in foreign.parent.iterdir()] == ["train"]
    with pytest.raises(RunExists):
        claim(storage, "cifar10", "run1", Manifest)


def test_a_name_of_ones_own_is_claimed_once(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert claim(storage, "cifar10", "baseline", Manifest).name == "baseline"
    with pytest.raises(RunExists) as caught:
        claim(storage, "cifar10", "baseline", Manifest)
    where = f"{tmp_path}/cifar10/baseline"
    expected = f"there is a run at {where} already. Resume it, or choose another name."
    assert str(caught.value) == expected


def test_names_in_a_bucket(s3_bucket: str) -> None:
    storage = open_storage(f"{s3_bucket}/named")
    assert [claim_next(storage, "a", Manifest).name for _ in range(3)] == ["run1", "run2", "run3"]
    claim(storage, "a", "baseline", Manifest)
    with pytest.raises(RunExists, match="named/a/baseline already"):
        claim(storage, "a", "baseline", Manifest)


def test_a_thousand_processes_get_a_thousand_names_on_disk(tmp_path: Path) -> None:
    names = claimed_by_many(str(tmp_path), 1000, at_once=1000)
    assert len(set(names)) == 1000
    there = {path.parent.name for path in tmp_path.glob("sweep/*/run.json")}
    assert there == set(names)


def test_a_thousand_at_once_get_a_thousand_names_in_a_bucket(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of a few processes: a thousand clients would only show what the machine can take."""
    command = [sys.executable, str(HERE / "tiny_s3.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.stdout.readline().strip())
            names = claimed_by_many("s3://bucket/runs", 10, at_once=10, threads=100)
            listing = list(open_storage("s3://bucket/runs").list("sweep"))
        finally:
            server.terminate()
    assert len(set(names)) == 1000
    assert {entry.name for entry in listing} == {f"sweep/{name}/run.json" for name in names}


def test_many_processes_get_names_from_a_real_server(s3_bucket: str) -> None:
    names = claimed_by_many(f"{s3_bucket}/crowd", 60, at_once=20)
    assert len(set(names)) == 60
    listing = open_storage(f"{s3_bucket}/crowd").list("sweep")
    assert {entry.name.split("/")[1] for entry in listing} == set(names)


class LosingAnswers(LocalStorage):
    """Carries a request out, loses the answer, and is asked again."""

    def create_new(self, name: str, data: bytes) -> None:
        super().create_new(name, data)
        super().create_new(name, data)


def test_who_claims_a_name_is_not_its_own_rival(tmp_path: Path) -> None:
    storage = LosingAnswers(str(tmp_path))
    assert claim_next(storage, "a", Manifest).name == "run1"
    assert claim(storage, "a", "baseline", Manifest).name == "baseline"
    assert claim_next(storage, "a", Manifest).name == "run2"
    with pytest.raises(RunExists):
        claim(storage, "a", "baseline", Manifest)
    assert sorted(path.name for path in tmp_path.glob("a/*")) == ["baseline", "run1", "run2"]


def test_two_whose_records_are_the_same_do_not_share_a_name(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert create_record(storage, "a/x", Manifest("x"))
    assert not create_record(storage, "a/x", Manifest("x"))


@pytest.mark.parametrize("name", ["run1", "lr=0.1,batch=32", "größe", "a.b-c_d (2)", "x" * 128])
def test_a_name_that_is_one(name: str) -> None:
    assert check_name(name, "run") == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "'', is empty, or begins or ends with a space"),
        (" a", "is empty, or begins or ends with a space"),
        ("a/b", "has the character '/' in it"),
        ("a\nb", "has the character '\\n' in it"),
        ("..", "begins with a dot"),
        ("ü" * 65, "is longer than 128 bytes"),
    ],
)
def test_a_name_that_is_none(name: str, problem: str) -> None:
    with pytest.raises(BadName) as caught:
        check_name(name, "experiment")
    text = str(caught.value)
    assert text.startswith("the name of the experiment, ")
    assert problem in text
    assert text.endswith("Use letters, digits, '-', '_', '.', '=' and the like.")


def test_a_name_that_needs_no_claim_is_one_of_its_own() -> None:
    assert unclaimed_name("baseline").startswith("baseline-")
    names = {unclaimed_name(None) for _ in range(50)}
    assert len(names) == 50
    for name in names:
        check_name(name, "run")
