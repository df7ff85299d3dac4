"""Processes, file systems, the cache directory and packages of this machine."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from aboard import system
from aboard.index import Index
from aboard.system import (
    Backoff,
    cache_place,
    file_system_of,
    is_fuse,
    is_network,
    machine_digest,
    make_private,
    own_directory,
    own_file,
    require,
    requires,
)


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    """A process with a command line, a variable, open files and a pending signal of its own."""
    place = tmp_path_factory.mktemp("child")
    (place / "read").touch()
    script = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1});"
        "a = open(sys.argv[1] + '/read'); b = open(sys.argv[1] + '/written', 'w');"
        "print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-ISc", script, str(place), "-x\udcff"],
        env={"PLACE": "here=there"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    process.stdout.readline()
    process.place = place
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_found_with_its_group_start_and_memory(child):
    found = system.find_process(child.pid)
    assert (found.pid, found.group, found.is_alive) == (child.pid, child.pid, True)
    assert found.started == system.start_ticks(child.pid) > 0
    assert found.resident > 1 << 20
    assert found.pid in system.process_ids()
    assert [one.pid for one in system.processes_by_group()[child.pid]] == [child.pid]
    assert 0 < system.proportional_memory([found]) <= found.resident * 2


def test_the_command_and_environment_of_a_process_are_known(child):
    assert system.command_line(child.pid)[-1] == "-x\udcff"
    assert system.program_name(child.pid).startswith("python")
    assert system.start_variable(child.pid, "PLACE") == b"here=there"
    assert system.start_variable(child.pid, "PLAC") is None
    assert child.pid in system.children(os.getpid())


def test_open_files_are_listed_and_those_for_writing_are_known(child):
    paths = {path for _, path in system.open_files(child.pid)}
    assert {str(child.place / "read"), str(child.place / "written")} <= paths
    assert system.writes_below(child.pid, str(child.place))
    assert not system.writes_below(child.pid, str(child.place / "written"))
    (child.place / "written").rename(child.place / "moved")
    assert system.writes_below(child.pid, str(child.place))
    with (child.place / "read").open() as file:
        assert system.path_of_descriptor(file.fileno()) == str(child.place / "read")


def test_a_file_open_for_reading_only_is_not_written(tmp_path):
    (tmp_path / "a").touch()
    with (tmp_path / "a").open():
        assert not system.writes_below(os.getpid(), str(tmp_path))


def test_a_signal_that_a_process_blocks_is_seen_pending(child):
    assert system.has_pending_signal(child.pid, signal.SIGUSR1) is False
    os.kill(child.pid, signal.SIGUSR1)
    assert system.has_pending_signal(child.pid, signal.SIGUSR1) is True


def test_an_exited_process_is_not_alive_before_and_after_it_is_reaped():
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert system.find_process(ended.pid).is_alive is False
    assert system.start_ticks(ended.pid) == 0
    ended.wait()
    assert system.find_process(ended.pid) is None
    assert system.start_ticks(ended.pid) == 0
    assert system.command_line(ended.pid) == system.children(ended.pid) == []
    assert list(system.open_files(ended.pid)) == []
    assert system.program_name(ended.pid) == ""
    assert system.start_variable(ended.pid, "PATH") is None
    assert system.has_pending_signal(ended.pid, signal.SIGUSR1) is None


def test_the_name_of_a_program_may_look_like_anything(tmp_path):
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    try:
        assert system.find_process(process.pid).is_alive
    finally:
        process.kill()
        process.wait()


def test_this_process_started_in_the_past():
    assert 0 < time.time() - system.own_start_time() < 86400


def test_boot_and_namespace_are_known():
    assert len(system.boot_id()) == 36
    assert system.pid_namespace() > 0


def test_the_innermost_mount_counts(tmp_path):
    mounts = f"22 1 0:1 / / rw - ext4 root rw\n23 22 0:2 / {tmp_path} rw - lustre l rw\n"
    assert file_system_of(tmp_path / "not" / "yet", mounts) == "lustre"
    assert file_system_of(tmp_path.parent, mounts) == "ext4"
    deeper = tmp_path / "a b"
    deeper.mkdir()
    mounts += f"24 23 0:3 / {str(deeper).replace(' ', chr(92) + '040')} rw shared:1 - xfs x rw\n"
    assert file_system_of(deeper / "x", mounts) == "xfs"


def test_without_mounts_nothing_is_known(tmp_path):
    assert file_system_of(tmp_path, "") == ""
    assert file_system_of(tmp_path, "garbage\n - \n") == ""


@pytest.mark.parametrize("error", [errno.ENOTCONN, errno.EACCES, errno.ESTALE])
def test_nothing_is_known_about_an_unreadable_path(tmp_path, monkeypatch, error):
    stat = os.stat

    def dead(path, *arguments, **options):
        if str(path).startswith(str(tmp_path)):
            raise OSError(error, os.strerror(error), str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", dead)
    mounts = f"23 22 0:2 / {tmp_path} rw - fuse.gcsfuse source rw\n"
    assert file_system_of(tmp_path / "run", mounts) == ""
    assert not is_fuse(tmp_path / "run", mounts)


@pytest.mark.parametrize(
    ("kind", "fuse"),
    [
        ("fuse.gcsfuse", True),
        ("fuse", True),
        ("fuseblk", False),
        ("fusectl", False),
        ("nfs", False),
    ],
)
def test_file_systems_in_user_space_are_known_by_their_type(tmp_path, kind, fuse):
    assert is_fuse(tmp_path, f"23 22 0:2 / {tmp_path} rw - {kind} source rw\n") is fuse


def test_one_process_at_a_time_holds_the_lock_of_a_file(tmp_path):
    lock = tmp_path / "lock"
    waiting = f"from aboard.system import file_lock\nwith file_lock({str(lock)!r}): print('mine')"
    with system.file_lock(lock):
        other = subprocess.Popen([sys.executable, "-c", waiting], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            other.communicate(timeout=0.5)
    assert other.communicate(timeout=180)[0] == b"mine\n"
    assert lock.stat().st_mode & 0o777 == 0o600


def test_a_lock_is_tried_without_waiting(tmp_path):
    lock = tmp_path / "lock"
    with system.file_lock(lock), lock.open("rb") as other:
        assert not system.try_lock(other.fileno())
    with lock.open("rb") as other:
        assert system.try_lock(other.fileno())


def test_a_process_is_found_by_its_mark_at_any_moment_of_its_start():
    for number in range(40):
        reading, writing = os.pipe()
        words = ["/bin/sh", "-c", "read -r word"]
        pid = system.spawn(words, {"MARK": str(number)}, stdin=reading, stdout="/dev/null")
        os.close(reading)
        found = dict(system.marked_processes("MARK"))
        os.close(writing)
        os.waitpid(pid, 0)
        assert found.get(pid) == str(number)


def test_all_missing_packages_are_named_at_once():
    require("json", "numpy")
    with pytest.raises(ImportError) as caught:
        require("json", "no_such_one", "nor_this")
    expected = "no_such_one, nor_this, which are not installed: pip install aboard"
    assert str(caught.value) == f"this needs {expected}"
    assert caught.value.name == "no_such_one"


def test_an_import_that_fails_for_another_package_is_not_explained():
    with pytest.raises(ModuleNotFoundError, match="No module named"), requires("no_such_one"):
        import_module("nor_this")
    expected = "this needs nor_this, which is not installed: pip install nor-this"
    with (
        pytest.raises(ImportError, match=expected),
        requires("no_such_one", "nor_this", install="nor-this"),
    ):
        import_module("nor_this.part")


def test_a_network_cache_is_not_used_and_a_notice_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("aboard.system.file_system_of", lambda path: "nfs4")
    place = cache_place()
    assert place.directory == tmp_path / "tmp" / f"aboard-{os.getuid()}"
    with Index() as index:
        assert index.path is not None
        assert index.path.parent == place.directory
        assert str(index.problems[0]) == (
            f"{tmp_path}/cache is on a network file system (nfs4), so the index is in"
            f" {place.directory} on this machine."
            " Set ABOARD_CACHE to a local directory to choose another place."
        )


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        ("fuse", True),
        ("fuse.goofys", True),
        ("fuse.geesefs", True),
        ("fuse.ossfs", True),
        ("fuse.blobfuse", True),
        ("fuse.sshfs", True),
        ("lustre", True),
        ("fuse.fuse-overlayfs", False),
        ("fuse.ntfs-3g", False),
        ("fuseblk", False),
        ("ext4", False),
        ("", False),
    ],
)
def test_mounts_in_user_space_are_shared_unless_known_not_to_be(kind, shared):
    assert is_network(kind) is shared


def test_the_usual_places(monkeypatch, tmp_path):
    monkeypatch.setattr("aboard.system.file_system_of", lambda path: "ext4")
    monkeypatch.delenv("ABOARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_place() == (tmp_path / "aboard", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_place() == (tmp_path / "home" / ".cache" / "aboard", "")


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written to by other users"):
        make_private(shared)


def test_a_directory_of_another_user_is_refused(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_private(other)


# Private temporary directories and files.


HOLDER = """
import sys
from pathlib import Path
from aboard.system import own_directory, own_file
with own_directory("mine") as directory, own_file(Path(sys.argv[1]), "page", ".html", "x") as file:
    (directory / "copy").write_text("large")
    print(directory, file, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@contextmanager
def holder(place: Path) -> Iterator["tuple[subprocess.Popen[str], Path, Path]"]:
    """Let another process have a directory and a file."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            directory, file = process.stdout.readline().split()
            yield process, Path(directory), Path(file)
        finally:
            process.kill()


def use(place: Path) -> None:
    with own_directory("mine"), own_file(place, "page", ".html", "y"):
        pass


def test_they_are_ours_alone_and_gone_afterwards(place: Path) -> None:
    with own_directory("mine") as directory, own_file(place, "page", ".html", "hello") as file:
        assert directory.stat().st_mode & 0o777 == 0o700
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() == "hello"
        assert file.suffix == ".html"
        (directory / "below").mkdir()
    assert list(place.iterdir()) == []


def test_those_of_a_process_that_lives_stay(place: Path) -> None:
    with holder(place) as (_, directory, file):
        use(place)
        assert (directory / "copy").exists()
        assert file.exists()


def test_those_of_a_process_that_was_killed_go(place: Path) -> None:
    with holder(place) as (process, directory, file):
        process.kill()
        process.wait()
        assert (directory / "copy").exists()
        assert file.exists()
        use(place)
    assert list(place.iterdir()) == []


def test_nothing_else_is_touched(place: Path) -> None:
    mine = machine_digest()
    kept = [f"mine-{mine}-unlocked", "mine-other000-abc", "mine", f"other-{mine}-abc"]
    for name in kept:
        (place / name).mkdir()
    (place / "mine-other000-abc" / "lock").touch()
    (place / "thesis.html").write_text("precious")
    (place / f"page-{mine}-link.html").symlink_to(place / "thesis.html")
    os.mkfifo(place / f"page-{mine}-pipe.html")
    before = sorted(place.iterdir())
    use(place)
    assert sorted(place.iterdir()) == before
    assert (place / "thesis.html").read_text() == "precious"


def test_a_place_that_cannot_be_written_is_an_error(place: Path) -> None:
    with pytest.raises(OSError, match="No such file"), own_file(place / "no", "page", ".html", "x"):
        pass


def test_a_backoff_grows_to_its_limit_and_starts_again():
    backoff = Backoff(1.0, 10.0, 3.0)
    assert backoff.delay == 0.0
    assert [backoff.grow() for _ in range(4)] == [1.0, 3.0, 9.0, 10.0]
    assert backoff.delay == 10.0
    backoff.reset()
    assert (backoff.delay, backoff.grow()) == (0.0, 1.0)
