"""What users see when something is wrong: one line, and the right exit code."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aboard.cli.console import line_for
from tests.engines.unprivileged import powerless
from tests.waiting import until


def test_an_empty_tree(aboard, tmp_path):
    (tmp_path / "empty").mkdir()
    result = aboard("ls", "empty")
    assert result == (
        1,
        "",
        (
            f"aboard: no event files below {tmp_path}/empty; TensorBoard logs are files whose name"
            " contains 'tfevents'. Check the path, and that the job has written something.\n"
        ),
    )


def test_a_missing_path(aboard, tmp_path):
    assert aboard("index", "missing") == (
        1,
        "",
        f"aboard: {tmp_path}/missing: file or directory not found. Check the path.\n",
    )


def test_a_file_that_is_no_event_file_by_name(aboard, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert aboard("ls", "notes.txt") == (
        1,
        "",
        (
            f"aboard: {tmp_path}/notes.txt: not an event file, whose name contains"
            " 'tfevents'. Name a directory or an event file.\n"
        ),
    )


def test_a_file_that_is_no_event_file_by_content(aboard, tmp_path):
    (tmp_path / "tfevents").write_bytes(b"something else" * 100)
    assert aboard("ls", "tfevents") == (
        1,
        "",
        (
            f"aboard: {tmp_path}/tfevents: no valid record in 1.40 kB; it is not an event"
            " file, or is damaged.\n"
        ),
    )


@pytest.mark.parametrize(
    ("uri", "line"),
    [
        ("s3:/bucket", "s3:/bucket: '://' is missing. Did you mean s3://bucket?"),
        ("s3://", "s3://: the bucket is missing. Write s3://bucket/path."),
        ("", "'': not a path or URI. Give a directory or a bucket."),
    ],
)
def test_a_bad_uri_is_wrong_usage(aboard, uri, line):
    assert aboard("ls", uri) == (2, "", f"aboard: {line}\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["ls", "--zyx"], "no such option: --zyx. See 'aboard ls --help'."),
        (
            ["ls"],
            "./runs not found. Name what to list: aboard ls SOURCE. Or set ABOARD_ROOT or --root.",
        ),
        (
            ["index"],
            "./runs not found. Name what to read: aboard index SOURCE. Or set ABOARD_ROOT.",
        ),
        (
            ["export"],
            (
                "./runs not found. Name what to export: aboard export SOURCE. Or set ABOARD_ROOT"
                " or --root."
            ),
        ),
        (
            ["index", "--forget"],
            "--forget requires a source. Name it: aboard index --forget SOURCE.",
        ),
        (["lss"], "no such command 'lss'. Did you mean 'ls'? See 'aboard --help'."),
    ],
)
def test_wrong_usage(aboard, arguments, line):
    assert aboard(*arguments) == (2, "", f"aboard: {line}\n")


def test_json_is_printed_also_when_nothing_could_be_read(aboard):
    result = aboard("index", "missing", "--json")
    assert result.code == 1
    assert result.json["sources"] == []
    assert "file or directory not found" in result.json["errors"][0]["message"]


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["ls", "--json", "--foo"], 2, "usage"),
        (["lss", "--json"], 2, "usage"),
        (["view", "--json", "--no-browser", "missing"], 1, None),
        (["doctor", "--json"], 2, "usage"),
        (["runs", "show", "run1", "--json"], 1, "failure"),
        (["runs", "list", "--columns", "nothing", "--json"], 2, "usage"),
        (["list", "--json"], 1, "no_hub"),
        (["describe", "", "--json"], 1, "no_hub"),
        (["start", "--json"], 2, "usage"),
        (["stop", "x", "--json"], 1, "no_hub"),
        (["boards", "change", "x", "--json"], 2, "usage"),
        (["hub", "status", "--json"], 1, "no_hub"),
        (["hub", "stop", "--json"], 1, "failure"),
        (["login", "--json"], 2, "usage"),
        (["user", "list", "--json"], 1, "no_hub"),
        (["serve", "--personal", "--admin", "ada", "--json"], 2, "usage"),
    ],
)
def test_a_failure_is_a_document_with_json(aboard, no_hub, arguments, code, kind):
    done = aboard(*arguments)
    assert done.code == code
    (error,) = done.json["errors"]
    assert kind in {None, error["code"]}
    assert done.err == f"aboard: {error['message']}\n"


def test_the_output_of_programs_and_of_points_stays_theirs(aboard, tree):
    assert aboard("export", tree, "--tag", "none", "--json").out == ""
    assert aboard("run", "--json", "--", "nope").out == ""


@pytest.fixture
def powerless_aboard(variables, tmp_path):
    """Run the command as one who has to keep to the modes of files."""

    def run(*arguments):
        return subprocess.run(
            powerless(sys.executable, "-m", "aboard", *arguments),
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize("closed", [".", "b", "a/train/*"])
def test_no_permission(powerless_aboard, tree, closed):
    (path,) = tree.glob(closed) if closed != "." else [tree]
    path.chmod(0)
    try:
        done = powerless_aboard("ls", tree)
    finally:
        path.chmod(0o755)
    assert done.returncode == 1
    hint = "permission denied. Check the owner and mode of the path."
    assert done.stderr == f"aboard: {path}: {hint}\n"


@pytest.mark.parametrize("command", ["ls", "export", "doctor"])
def test_files_that_cannot_be_read_are_not_called_absent(powerless_aboard, tree, command):
    files = sorted(tree.rglob("*tfevents*"))
    for path in files:
        path.chmod(0)
    done = powerless_aboard(command, tree)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "no event files" not in said
    assert all(str(path) in said for path in files)
    if command != "doctor":
        count = f"none of {len(files)} event files can be read. See the reasons above."
        assert done.stderr.splitlines()[-1] == f"aboard: {tree}: {count}"


@pytest.mark.parametrize("command", ["ls", "index", "export"])
def test_a_place_that_may_not_be_looked_at_does_not_spoil_the_others(
    powerless_aboard, tree, tmp_path, command
):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0)
    try:
        done = powerless_aboard(command, tree, closed / "x")
    finally:
        closed.chmod(0o755)
    assert done.returncode == 1
    assert str(tree) in done.stdout or "a/train" in done.stdout
    assert done.stderr == (
        f"aboard: {closed}/x: permission denied. Check the owner and mode of the path.\n"
    )


def test_a_name_that_no_file_can_have_does_not_spoil_the_others(aboard, tree):
    done = aboard("ls", "--json", tree, "x" * 300)
    assert done.code == 1
    assert [one["source"] for one in done.json["sources"]] == [str(tree)]
    (error,) = done.json["errors"]
    assert error["message"].endswith("the name is too long. Use a shorter one.")


def test_an_index_that_cannot_be_written_is_said_and_done_without(aboard, tree, tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = aboard("ls", tree, ABOARD_CACHE=str(tmp_path / "file"))
    assert result.code == 0
    assert "a/train" in result.out
    assert result.err.startswith(f"aboard: the index {tmp_path}/file/index-")
    assert "kept in memory" in result.err
    assert "Free some space" not in result.err


@pytest.mark.parametrize("changed", [{}, {"ABOARD_DEBUG": "1"}])
def test_a_traceback_only_when_asked_for(aboard, tree, changed):
    output = tree / "a"
    result = aboard("export", tree, "--format", "csv", "-o", output, **changed)
    assert result.code == 1
    assert f"{output}: is a directory. Name a file in it." in result.err
    assert ("Traceback" in result.err) == bool(changed)


def test_debug_as_an_option(aboard, tree):
    assert "Traceback" in aboard("--debug", "export", tree, "--tag", "none").err


def test_an_unexpected_error_says_how_to_find_its_cause():
    assert line_for(KeyError("x")) == (
        "internal error: KeyError: 'x'. 'aboard --debug …' shows where."
    )
    assert line_for(OSError(28, "No space left on device", "/f")) == (
        "/f: no space left on device."
    )


def test_ctrl_c_ends_quietly_and_loses_nothing(aboard, variables, tree):
    from aboard import EventWriter

    for number in range(4):
        with EventWriter(tree / f"long{number}", flush_secs=1e9) as writer:
            for step in range(30_000):
                writer.scalar("loss", step, step, wall_time=step)
    slow = variables | {"ABOARD_PURE_PYTHON": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "aboard", "index", tree],
        env=slow,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    index = Path(variables["ABOARD_CACHE"])
    until(lambda: process.poll() is not None or any(index.glob("index-*.db")))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=180) == (b"", b"")
    assert process.returncode == 130
    assert aboard("index", tree, "--json").json["sources"][0]["points"] == 4 * 30_000 + 15


def test_names_from_files_cannot_move_the_cursor(aboard, tmp_path):
    from aboard import EventWriter

    with EventWriter(tmp_path / "logs") as writer:
        writer.scalar("a\x1b[2Jb\nc", 1.0, 1)
    assert "a\\x1b[2Jb\\nc" in aboard("ls", "--tags", "logs").out


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">/dev/full", "| true"])
def test_whoever_does_not_listen_gets_no_traceback(variables, tree, closed):
    command = f'"{sys.executable}" -m aboard ls "{tree}" {closed}'
    done = subprocess.run(["bash", "-c", command], env=variables, capture_output=True, check=False)
    full = b"aboard: no space left on device.\n"
    assert done.stderr == (full if closed == ">/dev/full" else b"")
    assert done.returncode == (1 if closed == ">/dev/full" else 0)
