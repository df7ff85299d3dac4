"""What is special about file systems: links, permissions, full disks, others at work."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from aboard.storage import (
    AlreadyExists,
    BadUri,
    Entry,
    NoSuchPath,
    PermissionDenied,
    StorageError,
    StorageFull,
    local,
    open_storage,
)


@pytest.fixture(params=["c", "python"], autouse=True)
def _both_readers_of_directories(request: pytest.FixtureRequest, monkeypatch) -> None:
    if request.param == "python":
        monkeypatch.setenv("ABOARD_PURE_PYTHON", "1")
    else:
        pytest.importorskip("aboard.storage._listing", reason="the C core was not compiled")


def files(path: Path, *names: str) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"x")


def directory(path: Path) -> list[str]:
    """Show what is really there, hidden files included."""
    return sorted(file.name for file in path.iterdir())


def names(path: Path, prefix: str = "") -> list[str]:
    return [entry.name for entry in open_storage(str(path)).list(prefix)]


def test_the_order_is_the_same_every_time(tmp_path: Path) -> None:
    files(tmp_path, "b/2", "b/1", "a/z/1", "a/1", "top", "c/1")
    assert names(tmp_path) == ["top", "a/1", "a/z/1", "b/1", "b/2", "c/1"]


def test_the_version_is_the_time_and_the_inode(tmp_path: Path) -> None:
    files(tmp_path, "a")
    status = (tmp_path / "a").stat()
    [entry] = open_storage(str(tmp_path)).list()
    assert entry.version == f"{status.st_mtime_ns:x}.{status.st_ino:x}"


def test_linked_directories_are_followed_under_both_names(tmp_path: Path) -> None:
    files(tmp_path, "runs/a/events")
    (tmp_path / "best").symlink_to("runs/a")
    (tmp_path / "runs/file").symlink_to("a/events")
    assert names(tmp_path) == ["best/events", "runs/file", "runs/a/events"]


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    files(tmp_path, "a/b/events", "c/events")
    (tmp_path / "a/b/up").symlink_to("../..")
    (tmp_path / "a/here").symlink_to(".")
    (tmp_path / "c/self").symlink_to("self")
    (tmp_path / "c/a").symlink_to(tmp_path / "a")
    assert names(tmp_path) == ["a/b/events", "c/events", "c/a/b/events"]


def test_what_is_no_file_is_not_listed(tmp_path: Path) -> None:
    files(tmp_path, "events")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    assert names(tmp_path) == ["events"]
    with pytest.raises(NoSuchPath, match="pipe: not a regular file"):
        open_storage(str(tmp_path)).read("pipe")
    with pytest.raises(NoSuchPath, match="not a regular file"):
        open_storage(str(tmp_path.parent)).read(tmp_path.name)


def with_vanishing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a directory vanish once the directory above it was read."""
    read = local._contents, local.scan

    def vanish(*found):
        shutil.rmtree(place, ignore_errors=True)
        return found

    monkeypatch.setattr(local, "_contents", lambda *given: vanish(read[0](*given))[0])
    monkeypatch.setattr(local, "scan", lambda *given: vanish(read[1](*given))[0])


def test_a_directory_that_vanishes_is_reported_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path, "a/events", "b/events", "c/events")
    problems: list[StorageError] = []
    listing = open_storage(str(tmp_path)).list(on_error=problems.append)
    with_vanishing(tmp_path / "b", monkeypatch)
    assert [entry.name for entry in listing] == ["a/events", "c/events"]
    [problem] = problems
    assert isinstance(problem, NoSuchPath)
    assert str(problem) == f"{tmp_path}/b: file or directory not found. Check the path."


def test_without_on_error_a_vanished_directory_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path, "a/events", "b/events")
    listing = open_storage(str(tmp_path)).list()
    with_vanishing(tmp_path / "b", monkeypatch)
    with pytest.raises(NoSuchPath):
        list(listing)


@pytest.mark.parametrize("part", ["", "events", "é"])
def test_both_readers_find_the_same(tmp_path: Path, monkeypatch, part: str) -> None:
    """More directories than are read at once; some with links, pipes, old times and no access."""
    rng = random.Random(part)
    for number in range(1500):
        place = tmp_path / "/".join(rng.choice("abcdefgh") for _ in range(rng.randint(1, 4)))
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{rng.choice(['events', 'é', '.aboard-tmp-', '.jobs'])}{number}"
        path.write_bytes(b"x" * rng.randint(0, 9))
        os.utime(path, ns=(0, rng.randint(-(10**9), 10**18)))
        if rng.random() < 0.02:
            (place / f"link{number}").symlink_to(rng.choice(["..", "nowhere", path.name]))
        if rng.random() < 0.02:
            os.mkfifo(place / f"events-pipe{number}")
        if rng.random() < 0.02:
            os.close(os.open(os.fsencode(place / "events-") + b"\xff", os.O_CREAT))
        if rng.random() < 0.02:
            odd = os.fsencode(place) + b"/odd\xff/below"
            os.makedirs(odd, exist_ok=True)  # noqa: PTH103 - a path of bytes
            os.close(os.open(odd + b"/events", os.O_CREAT))
    (tmp_path / "a/.jobs").mkdir()
    files(tmp_path, "a/.jobs/events", "b/.jobs-of-mine/events")

    def found(core: str) -> tuple[list[Entry], list[str]]:
        monkeypatch.setenv("ABOARD_PURE_PYTHON", core)
        problems: list[StorageError] = []
        storage = open_storage(str(tmp_path))
        listed = list(storage.list(containing=part, on_error=problems.append))
        return listed, list(map(str, problems))

    assert found("") == found("1")
    assert len(found("")[0]) > 300


def many_directories(path: Path, count: int, *, each: int = 1) -> None:
    for number in range(count):
        files(path, *(f"{number:04}/events{one}" for one in range(each)))


class Counted:
    """The C core, which counts the directories that it was given and those that it read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        core = pytest.importorskip("aboard.storage._listing", reason="the C core was not compiled")
        self.given = self.read = self.most = 0
        self._core = core.read_directories
        monkeypatch.setattr(local, "compiled", lambda _: self)

    def read_directories(self, paths, part, most, threads):
        answer = self._core(paths, part, most, threads)
        self.given += len(paths)
        self.read += len(answer)
        self.most = max(self.most, sum(len(one[0]) for one in answer if one))
        return answer


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["slow disk", "fast disk"])
def test_each_directory_is_read_once_by_the_core(tmp_path: Path, monkeypatch, seconds) -> None:
    monkeypatch.setattr(local, "_SLOW_SECONDS", seconds)
    monkeypatch.setattr(local, "_SMALL", 0)
    root = tmp_path / "root"
    many_directories(root, 1200)
    for number in range(1200):  # which is left to Python
        (root / f"{number:04}/link").symlink_to("events0")
    core = Counted(monkeypatch)
    assert len(names(root)) == 2400
    assert core.read == 1201


def test_few_entries_are_read_ahead(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "root"
    many_directories(root, 200, each=30)
    monkeypatch.setattr(local, "_ENTRIES", 50)
    monkeypatch.setattr(local, "_SLOW_SECONDS", 60.0)  # one thread
    monkeypatch.setattr(local, "_SMALL", 0)
    core = Counted(monkeypatch)
    assert len(names(root)) == 6000
    assert core.read == 201 < core.given
    assert core.most <= 201


def test_without_threads_directories_are_read_one_after_the_other(tmp_path, monkeypatch) -> None:
    many_directories(tmp_path, 300)

    def fail(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", fail)
    assert len(names(tmp_path)) == 300


def test_the_core_is_not_used_if_names_are_not_utf_8(tmp_path: Path) -> None:
    files(tmp_path, "lauf-é/events")
    script = (
        "import sys; from aboard.storage import open_storage\n"
        "print(ascii([one.name for one in open_storage(sys.argv[1]).list(on_error=print)]))"
    )
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=True,
    )
    assert "the path is not UTF-8. Rename it." in done.stdout
    assert done.stdout.endswith("[]\n")


def test_a_confined_process_does_not_list_a_directory_that_became_a_link(
    tmp_path: Path, monkeypatch
) -> None:
    root = tmp_path / "root"
    files(root, "a/events", "b/events")
    files(tmp_path, "secrets/secret")
    monkeypatch.setattr(local, "_real", (f"{root}/",))
    problems: list[StorageError] = []
    listing = open_storage(str(root)).list(on_error=problems.append)
    assert next(listing).name == "a/events"
    shutil.rmtree(root / "b")
    (root / "b").symlink_to(tmp_path / "secrets")
    assert list(listing) == []
    assert [str(one) for one in problems] == [
        f"{root}/b: permission denied. Check the owner and mode of the path."
    ]


def test_a_name_that_is_not_unicode_is_reported(tmp_path: Path) -> None:
    files(tmp_path, "events")
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system stores only Unicode names")
    problems: list[StorageError] = []
    listing = open_storage(str(tmp_path)).list(on_error=problems.append)
    assert [entry.name for entry in listing] == ["events"]
    assert str(problems[0]) == rf"{tmp_path}/caf\udce9: the path is not UTF-8. Rename it."


LIST_AS_NOBODY = """
import json, os, sys
from aboard.storage import StorageError, open_storage
from aboard.storage import local
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
root, problems = sys.argv[1], []
storage = open_storage(root)
names = [entry.name for entry in storage.list(on_error=problems.append)]
for ask in (
    lambda: list(storage.list("closed")),
    lambda: storage.read("open/unreadable"),
    lambda: storage.write("events", b""),
    lambda: storage.create_new("new", b""),
    lambda: storage.delete("events"),
):
    try:
        ask()
    except StorageError as error:
        problems.append(error)
print(json.dumps([names, [[type(error).__name__, str(error)] for error in problems]]))
"""


def test_permission_denied_in_one_part_leaves_the_rest(shared_directory: Path) -> None:
    files(shared_directory, "closed/events", "open/events", "open/unreadable", "events")
    (shared_directory / "closed").chmod(0)
    (shared_directory / "open/unreadable").chmod(0)
    shared_directory.chmod(0o555)
    try:
        command = [sys.executable, "-c", LIST_AS_NOBODY, str(shared_directory)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        shared_directory.chmod(0o755)
        (shared_directory / "closed").chmod(0o755)
    listed, problems = json.loads(output)
    assert listed == ["events", "open/events", "open/unreadable"]
    denied = "permission denied. Check the owner and mode of the path."
    assert problems == [
        [PermissionDenied.__name__, f"{shared_directory}/{name}: {denied}"]
        for name in ("closed", "closed", "open/unreadable", "events", "new", "events")
    ]


CLAIM = """
import sys
from aboard.storage import AlreadyExists, open_storage
storage, content = open_storage(sys.argv[1]), sys.argv[2].encode() * 100_000
sys.stdin.read()
for number in range(20):
    try:
        storage.create_new(f"run{number}/run.json", content)
        print(number)
    except AlreadyExists:
        pass
"""


def test_of_many_processes_that_create_one_wins(tmp_path: Path) -> None:
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(tmp_path), str(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for job in range(6)
    ]
    for job in jobs:
        assert job.stdin is not None
        job.stdin.close()
        job.stdin = None
    won = sorted(int(line) for job in jobs for line in job.communicate()[0].split())
    assert won == list(range(20))
    for number in range(20):
        content = (tmp_path / f"run{number}/run.json").read_bytes()
        assert content == content[:1] * 100_000
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 20


def test_a_reader_sees_the_old_or_the_new(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    contents = {b"a" * 300_000, b"b" * 500_000}
    storage.write("run.json", b"a" * 300_000)

    def write() -> None:
        for _ in range(50):
            for content in contents:
                storage.write("run.json", content)

    writer = Thread(target=write)
    writer.start()
    while writer.is_alive():
        assert storage.read("run.json") in contents
        assert [entry.name for entry in storage.list()] == ["run.json"]
    writer.join()


def test_create_new_works_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    storage = open_storage(str(tmp_path / "logs"))
    storage.create_new("run.json", b"mine")
    with pytest.raises(AlreadyExists):
        storage.create_new("run.json", b"yours")
    assert storage.read("run.json") == b"mine"
    assert directory(tmp_path / "logs") == ["run.json"]


def test_a_file_gets_the_mode_that_the_user_asked_for(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    before = os.umask(0o027)
    try:
        storage.write("written", b"")
        storage.create_new("created", b"")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*ed")} == {0o640}


def test_a_directory_in_the_way_is_named(tmp_path: Path) -> None:
    files(tmp_path, "run1/events")
    storage = open_storage(str(tmp_path))
    with pytest.raises(AlreadyExists, match="run1: a directory has this name"):
        storage.write("run1", b"")
    with pytest.raises(AlreadyExists):
        storage.create_new("run1", b"")
    with pytest.raises(NoSuchPath, match="run1: this is a directory, not a file"):
        storage.delete("run1")
    with pytest.raises(NoSuchPath, match="a part of the path is a file"):
        storage.write("run1/events/deeper", b"")
    with pytest.raises(BadUri, match="the name is too long"):
        storage.write("x" * 300, b"")
    assert directory(tmp_path / "run1") == ["events"]


def test_a_full_disk_keeps_what_was_there(tiny_disk: Path) -> None:
    storage = open_storage(str(tiny_disk))
    storage.write("run.json", b"old")
    for write in (storage.write, storage.create_new):
        with pytest.raises(StorageFull) as caught:
            write("run.json", b"x" * 200_000)
        message = "no space left on the device. Delete files or use another disk."
        assert str(caught.value) == f"{tiny_disk}/run.json: {message}"
    assert directory(tiny_disk) == ["run.json"]
    assert storage.read("run.json") == b"old"


def test_opening_a_directory_imports_no_cloud(tmp_path: Path) -> None:
    program = (
        "import sys; from aboard.storage import open_storage;"
        "list(open_storage(sys.argv[1]).list());"
        "print([name for name in ('obstore', 'http', 'urllib') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
