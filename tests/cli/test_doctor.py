"""`aboard doctor`, as users run it."""

import os
import pty
import subprocess
import sys

from aboard import EventWriter


def test_a_sound_tree(aboard, tree):
    result = aboard("doctor", tree / "a")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == str(tree / "a")
    held = "1 directory with event files: 2 tags, 11 values in 1 file ("
    assert lines[1].startswith(f"  all good {held}")
    assert lines[1].endswith(" ago")
    assert lines[2] == "  info     1 file of 1 was written in the last 5 minutes"


def test_alone_it_examines_the_root(aboard, tree, tmp_path):
    missing = aboard("doctor")
    assert (missing.code, missing.out) == (2, "")
    assert "./runs not found. Name what to examine: aboard doctor SOURCE" in missing.err
    assert aboard("doctor", ABOARD_ROOT=str(tree)).out.splitlines()[0] == str(tree)
    tree.rename(tmp_path / "runs")
    result = aboard("doctor")
    assert (result.code, result.out.splitlines()[0]) == (0, str(tmp_path / "runs"))


def test_an_empty_directory(aboard, tree, tmp_path):
    (tmp_path / "log").mkdir()
    result = aboard("doctor", "log")
    assert result.code == 1
    place, what, advice = result.out.splitlines()
    assert place == str(tmp_path / "log")
    assert what.startswith("  error    no event files here or below, so a board would be")
    assert advice == f"           -> Open {tree}, which has some."


def test_warnings_are_no_failure(aboard, tree, damage):
    path = damage(tree / "a/train")
    result = aboard("doctor", tree)
    assert result.code == 0
    assert "all good" not in result.out
    assert "  warning  1 damaged place, 42 bytes in all, cannot be read\n" in result.out
    assert f"           {path} at byte " in result.out
    assert "  info     1 tag ended in values that are not finite\n" in result.out
    assert "           'loss' of b (infinite since step 1)\n" in result.out


def test_several_sources_and_one_missing(aboard, tree):
    result = aboard("doctor", tree / "a", tree / "c")
    assert result.code == 1
    assert "all good" in result.out
    assert f"\n\n{tree}/c\n  error    no such file or directory;" in result.out


def test_json(aboard, tree, variables):
    result = aboard("doctor", tree, "nowhere", "--json")
    assert result.code == 1
    document = result.json
    assert [(one["code"], one["severity"]) for one in document["findings"]] == [
        ("live", "info"),
        ("not-finite", "info"),
        ("path-missing", "error"),
    ]
    assert set(document["findings"][0]) == {
        "source",
        "code",
        "severity",
        "what",
        "where",
        "advice",
    }
    assert document["sources"][0]["source"] == str(tree)
    assert document["sources"][0]["values"] == 17
    assert document["sources"][1]["files"] == 0
    assert document["index"].startswith(variables["ABOARD_CACHE"])


def test_an_index_in_memory(aboard, tree, tmp_path):
    (tmp_path / "file").write_text("")
    result = aboard("doctor", tree, ABOARD_CACHE=str(tmp_path / "file"))
    assert result.code == 0
    assert "the index in memory\n  warning  the index " in result.out


def test_colours_are_for_terminals(variables, tree):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "aboard", "doctor", str(tree / "nothing")]
    variables = {**variables, "TERM": "xterm"}
    variables.pop("NO_COLOR", None)
    done = subprocess.run(command, env=variables, stdout=follower, check=False)
    os.close(follower)
    shown = os.read(leader, 4096).decode()
    os.close(leader)
    assert done.returncode == 1
    assert "\x1b[31merror   \x1b[0m no such" in shown


def test_a_name_before_a_source(aboard, tree):
    result = aboard("doctor", f"mine={tree / 'a'}")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[0] == str(tree / "a")


def test_selectors_mean_runs_below_a_root(aboard, root, tree):
    result = aboard("doctor", "cifar10/run1-run2", tree / "a", "--root", root, "--json")
    assert result.code == 0
    places = [one["source"] for one in result.json["sources"]]
    assert places == [str(tree / "a"), f"{root}/cifar10/run1", f"{root}/cifar10/run2"]


def test_a_selector_that_means_nothing_is_a_finding(aboard, root, tree):
    result = aboard("doctor", "cifar1", tree / "a", ABOARD_ROOT=str(root))
    assert result.code == 1
    assert "cifar1\n  error    'cifar1' matches no run\n" in result.out
    assert f"           {root}\n           -> The nearest is 'cifar10'." in result.out
    assert "all good" in result.out


def test_a_selector_that_cannot_be_meant(aboard, root):
    result = aboard("doctor", "hparam:<<", "--root", root)
    assert (result.code, result.out) == (2, "")
    assert "write hparam:NAME<VALUE" in result.err


def test_a_board_is_examined_as_its_hub_sees_it(hub, aboard, tmp_path):
    with EventWriter(tmp_path / "data" / "run1") as writer:
        writer.scalar("loss", 1.0, 0)
    started = aboard("start", tmp_path / "data", "--name", "seen", "--detach", "--json")
    assert started.code == 0, started.err
    result = aboard("doctor", "seen")
    assert result.out.startswith("board seen")
    assert f"\n\n{tmp_path}/data\n  all good 1 directory" in result.out
    assert aboard("stop", "seen").code == 0
    ended = aboard("doctor", started.json["id"], "--json")
    assert ended.code == 1
    (finding,) = [one for one in ended.json["findings"] if one["code"] == "board-state"]
    assert finding["what"].startswith("the board is stopped")
    assert finding["advice"] == "Start it again with: aboard restart seen"


def test_a_board_of_a_stopped_hub_is_examined(no_hub, aboard, tree, closed_port):
    started = aboard("start", tree / "a", "--name", "seen", "--detach", "--json")
    assert started.code == 0, started.err
    aboard("hub", "stop")
    result = aboard("doctor", "seen")
    assert (result.code, result.out.splitlines()[0]) == (0, "board seen")
    assert "aboard: started your hub again (" in result.err
    gone = aboard("doctor", "seen", ABOARD_HUB=f"http://localhost:{closed_port}")
    assert gone.code == 1
    assert "aboard: cannot tell whether 'seen' is a board: http://localhost:" in gone.err
    aboard("hub", "stop")
    no_hub.chmod(0o777)
    unsafe = aboard("doctor", "seen")
    assert (unsafe.code, unsafe.out.splitlines()[0]) == (1, str(tree.parent / "seen"))
    said = "aboard: cannot tell whether 'seen' is a board: your hub did not start: "
    why = f"{no_hub} can be written to by other users. Run 'chmod go-w {no_hub}'.\n"
    assert f"{said}{why}" in unsafe.err
    assert aboard("list").err == f"aboard: your hub did not start: {why}"


def test_each_thing_is_said_once(aboard, tmp_path, monkeypatch):
    for run in ("exp/run1", "exp/run2"):
        with EventWriter(tmp_path / "runs" / run) as writer:
            writer.scalar("loss", 1.0, 0)
    monkeypatch.chdir(tmp_path)
    assert "one-of-several" in aboard("doctor", "exp/1", "--json").out
    both = aboard("doctor", "exp", "--json").json
    assert [one["source"] for one in both["sources"]] == [
        str(tmp_path / "runs/exp/run1"),
        str(tmp_path / "runs/exp/run2"),
    ]
    found = {one["code"] for one in both["findings"]}
    assert found - {"slow-index"} == {"live"}  # the first is of a busy machine
