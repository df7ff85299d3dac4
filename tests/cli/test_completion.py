"""What Tab offers, asked as a shell asks it."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from aboard.cli.completion import join_words, offered_runs
from aboard.executors import EXECUTORS
from aboard.runs.manifest import Manifest
from tests.engines.real_hub import log_run


@pytest.fixture
def offered(aboard):
    """Ask what the last of some words can become; nothing is ever said beside it."""

    def ask(*words):
        done = aboard(
            _ABOARD_COMPLETE="complete_bash",
            COMP_WORDS="\n".join(["aboard", *words]),
            COMP_CWORD=str(len(words)),
        )
        assert done.err == ""
        return done.out.split()

    return ask


def test_boards_are_offered_by_name_and_id(hub, aboard, offered):
    made = aboard("start", "mnist", "--new", "--name", "offered", "--detach", "--json").json
    for command in ("stop", "describe", "open", "share"):
        assert offered(command, "offe") == ["offered"]
    assert offered("boards", "change", made["id"][:11]) == [made["id"]]
    aboard("stop", "offered")
    assert offered("stop", "offe") == []


def test_completion_after_an_unknown_command_is_silent(offered):
    assert offered("nosuch", "zzz") == []
    assert offered("nosuch", "--op") == []


def test_places_for_a_board_are_offered(hub, offered):
    assert {"instant", "process"} <= set(offered("start", "--on", ""))
    assert offered("start", "--on", "proc") == ["process"]
    assert offered("doctor", "--engine", "in") == []
    assert offered("doctor", "--engine", "proc") == ["process"]


@pytest.mark.parametrize(
    ("given", "words", "kept"),
    [
        ("aboard start --on slurm :", ["--on", "slurm:"], "slurm:"),
        ("aboard start --on slurm : lo", ["--on", "slurm:lo"], "slurm:"),
        ("aboard start --on = slurm : lo", ["--on", "slurm:lo"], "slurm:"),
        ("aboard start --on =", ["--on", ""], ""),
        ("aboard start --on slurm:lo", ["--on", "slurm:lo"], ""),
        ("aboard start s3 : //bucket/runs", ["s3://bucket/runs"], "s3:"),
        ("aboard start job : 17 mni", ["job:17", "mni"], ""),
        ("aboard start job : ", ["job:", ""], ""),
    ],
)
def test_words_that_bash_splits_are_joined(given, words, kept):
    assert join_words(given.split(" ")) == (["aboard", "start", *words], kept)


@pytest.fixture
def completed(variables, tmp_path):
    """Press Tab in Bash after each of some lines; return the lines that this makes."""

    def press(*lines):
        start = tmp_path / "bashrc"
        start.write_text('eval "$(aboard --show-completion)"\nPS1=""\n')
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        keyboard, terminal = pty.openpty()
        with subprocess.Popen(
            ["bash", "--noprofile", "--rcfile", str(start), "-i"],
            env=variables | {"PATH": programs, "TERM": "dumb"},
            cwd=tmp_path,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        ):
            os.close(terminal)
            # Alt-# makes the line a comment and shows it again; the bar shows a space before it.
            for line in lines:
                os.write(keyboard, f"{line}\t|\x1b#".encode())
            os.write(keyboard, b"exit\n")
            shown = b""
            with suppress(OSError):  # how a terminal ends
                while some := os.read(keyboard, 4096):
                    shown += some
            os.close(keyboard)
        printed = shown.decode().splitlines()
        return [line[1:-1] for line in printed if line.startswith("#aboard")]

    return press


def test_bash_completes_profiles_of_an_engine(no_hub, aboard, completed, tmp_path):
    settings = tmp_path / "aboard.toml"
    settings.write_text("[executors.slurm.profiles.long]\n")
    assert aboard("engines", ABOARD_CONFIG=str(settings)).code == 0
    typed = ("--on slurm:", "--on slurm:lo", "--on=slurm:l", "--on proc")
    assert completed(*(f"aboard start x {one}" for one in typed)) == [
        "aboard start x --on slurm:long ",
        "aboard start x --on slurm:long ",
        "aboard start x --on=slurm:long ",
        "aboard start x --on process ",
    ]


def test_bash_appends_no_space_to_what_must_be_continued(no_hub, aboard, completed, tmp_path):
    log_run(tmp_path / "runs", "mnist/run1", [3.0])
    record = Manifest("run1", "mnist", hparams={"lr": 0.1}, tags={"baseline": ""})
    (tmp_path / "runs/mnist/run1/run.json").write_bytes(record.to_json())
    assert aboard("runs", "--where", "metrics.loss.max > 0").code == 0
    assert completed(
        "aboard view ru",
        "aboard runs --sort hp",
        "aboard runs --sort -hp",
        "aboard runs --sort=-metrics.lo",
        'aboard runs --where "hpar',
        "aboard runs --sort crea",
        'aboard runs --where \'name == "x" and metrics["lo',
        r'aboard runs --where "name == \"x\" and metrics[\"lo',
        "aboard view tag:ba",
        "aboard view hparam:l",
    ) == [
        "aboard view runs/",
        "aboard runs --sort hparams.",
        "aboard runs --sort -hparams.",
        "aboard runs --sort=-metrics.loss ",
        'aboard runs --where "hparams.',
        "aboard runs --sort created ",
        'aboard runs --where \'name == "x" and metrics["loss"]\' ',
        r'aboard runs --where "name == \"x\" and metrics[\"loss\"]" ',
        "aboard view tag:baseline ",
        "aboard view hparam:lr",
    ]


def test_bash_quotes_what_it_would_split_or_run(completed, tmp_path):
    for name in ("one dir", "two $(touch ran)", "s3:x y", 'it\'s "5"', "st*r", "star"):
        (tmp_path / name).mkdir()
    pairs = [
        ("on", r"one\ dir/"),
        (r"one\ d", r"one\ dir/"),
        ("'on", "'one dir/'"),
        ('"on', '"one dir/"'),
        ("tw", r"two\ \$\(touch\ ran\)/"),
        ('"tw', r'"two \$(touch ran)/"'),
        ('tw"o', r'tw"o \$(touch ran)/"'),
        ("''tw", r"two\ \$\(touch\ ran\)/"),
        ("s3:x", r"s3:x\ y/"),
        ('"s3:x', '"s3:x y/"'),
        (r"it\'s", r"it\'s\ \"5\"/"),
        ("'it", r"""'it'\''s "5"/'"""),
        (r"'it'\''s", r"""'it'\''s "5"/'"""),
        ('"it', r""" "it's \"5\"/" """.strip()),
        (r""" "it's \" """.strip(), r""" "it's \"5\"/" """.strip()),
        (r"st\*", r"st\*r/"),
        ('"st*', '"st*r/"'),
    ]
    typed = (f"aboard view {one}" for one, _ in pairs)
    assert completed(*typed) == [f"aboard view {one}" for _, one in pairs]


def test_no_control_character_is_offered(offered, tmp_path):
    for name in ("a\nb", "a\tb", "a\x1bb", "ab"):
        (tmp_path / name).mkdir()
    assert offered("view", f"{tmp_path}/a") == [f"{tmp_path}/ab/"]


def test_without_a_hub_no_board_is_offered_and_none_started(
    no_hub, offered, closed_port, variables
):
    assert offered("stop", "") == []
    assert not no_hub.exists()
    variables["ABOARD_HUB"] = f"http://localhost:{closed_port}"
    assert offered("stop", "") == []


def test_experiments_and_runs_that_are_known_are_offered(no_hub, aboard, offered, tmp_path):
    log_run(tmp_path / "runs", "cifar10/run1", [1.0])
    log_run(tmp_path / "runs", "cifar10/run2", [1.0])
    log_run(tmp_path / "runs", "mnist/run1", [1.0])
    assert offered("runs", "ci") == []  # nobody has looked yet, and Tab does not
    aboard("runs")
    assert offered("runs", "ci") == ["cifar10", "cifar10/run1", "cifar10/run2"]
    assert offered("runs", "show", "cifar10/") == ["cifar10/run1", "cifar10/run2"]
    assert offered("start", "mn") == ["mnist", "mnist/run1"]
    assert offered("view", "mn") == ["mnist", "mnist/run1"]
    assert offered("boards", "add", "some-board", "mn") == ["mnist", "mnist/run1"]
    assert {"list", "show", "delete", "tag", "cifar10", "mnist"} <= set(offered("runs", ""))
    assert offered("view", "ru") == ["runs/"]
    assert not no_hub.exists()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["start", "x", "--on", ""], ["instant", *EXECUTORS]),
        (["start", "x", "--engine", "s"], ["stock"]),
        (["view", "x", "--engine", ""], ["fast", "stock"]),
        (["list", "--state", "sto"], ["stopping", "stopped"]),
        (["runs", "list", "--columns", "run,st"], ["run,state", "run,started"]),
        (["user", "role", "grace", "m"], ["member"]),
    ],
)
def test_values_of_options_are_offered(no_hub, offered, words, values):
    assert offered(*words) == values


@pytest.mark.parametrize(
    ("group", "default"),
    [("runs", "list"), ("jobs", "list"), ("user", "list"), ("token", "list"), ("hub", "status")],
)
def test_a_group_offers_the_options_of_its_default_command(offered, group, default):
    options = offered(group, "--")
    assert options.count("--help") == 1
    assert set(options) == set(offered(group, default, "--"))


def test_commands_of_a_group_are_offered_after_its_options(no_hub, offered):
    assert offered("hub", "--json", "st") == offered("hub", "st") == ["status", "stop"]
    assert offered("runs", "--json", "--root", ".", "sh") == ["show"]
    assert offered("runs", "--root", "sh") == []
    assert offered("runs", "--where", "sh") == []
    assert offered("runs", "--", "sh") == []
    assert offered("runs", "mnist", "sh") == []


def test_runs_are_offered_once_one_experiment_is_left(index):
    labels = ("cifar10/run1", "cifar100/run1", "mnist/run1")
    for one in labels:
        index.put_record("/runs", one, Manifest(one.rpartition("/")[2], one.rpartition("/")[0]))
    index.put_record("/runs", "raw", Manifest("raw"))
    index.put_record("/others", "else/run1", Manifest("run1", "else"))

    def texts(incomplete):
        return [text for text, _ in offered_runs(index, ["/runs"], incomplete)]

    assert texts("") == ["cifar10", "cifar100", "mnist", "raw"]
    assert texts("cifar10") == ["cifar10", "cifar100"]
    assert texts("cifar10/") == ["cifar10/run1"]
    assert texts("m") == ["mnist", "mnist/run1"]
    assert texts("r") == ["raw"]


def test_fields_of_runs_are_offered(aboard, offered, tmp_path):
    log_run(tmp_path / "runs", "mnist/run1", [3.0])
    record = Manifest("run1", "mnist", hparams={"lr": 0.1, "width": 3, "two words": 1})
    (tmp_path / "runs/mnist/run1/run.json").write_bytes(record.to_json())
    assert aboard("runs", "--where", "metrics.loss.max > 0").code == 0
    assert offered("runs", "--sort", "crea") == ["created"]
    assert offered("runs", "--sort", "-crea") == ["-created"]
    assert offered("runs", "--sort", "=", "-metrics.lo") == ["-metrics.loss"]
    assert offered("runs", "--sort", "'-metrics.lo") == ["-metrics.loss"]
    assert offered("runs", "--sort", "-nosuch") == []
    assert offered("runs", "--sort", "-state,-crea") == ["-state,-created"]
    assert offered("runs", "--group-by", "state,metrics.lo") == ["state,metrics.loss"]
    assert offered("runs", "--sort", "hp") == ["hparams.", "hparams.lr", "hparams.width"]
    assert offered("runs", "--group-by", "hparams.") == ["hparams.lr", "hparams.width"]
    assert offered("runs", "--where", "'state==1 or hparams.w")[-1] == "hparams.width"
    assert offered("ls", "runs", "--sort", "metrics.l") == ["metrics.loss"]
    words = offered("runs", "--where", """'name == "x" and hparams["t""")
    assert " ".join(words) == 'name == "x" and hparams["two words"]'
    assert offered("runs", "--sort", """'-metrics["lo""") == ['-metrics["loss"]']
    assert offered("runs", "--where", """'metrics["loss"].me""") == ['metrics["loss"].mean']
    assert offered("runs", "--columns", """'run,metrics["loss"].me""") == [
        'run,metrics["loss"].mean'
    ]
    assert offered("runs", "--where", """'hparams["two words"].""") == []
    assert offered("runs", "--columns", "hp") == ["hparams", "hparams."]
    assert offered("runs", "--columns", "run,hparams.l") == ["run,hparams.lr"]
    assert offered("runs", "--columns", "run,metrics.loss.me") == ["run,metrics.loss.mean"]


def test_tags_metrics_and_words_of_selectors_are_offered(aboard, offered, tmp_path):
    log_run(tmp_path / "runs", "mnist/run1", [3.0])
    record = Manifest("run1", "mnist", hparams={"lr": 0.1, "width": 3}, tags={"baseline": ""})
    (tmp_path / "runs/mnist/run1/run.json").write_bytes(record.to_json())
    assert offered("export", "runs", "--tag", "") == []  # nothing is read to complete
    assert aboard("runs", "--where", "metrics.loss.max > 0").code == 0
    assert offered("compare", "a", "b", "--metric", "lo") == ["loss"]
    assert offered("compare", "a", "b", "--metric", "loss.me") == ["loss.mean"]
    assert offered("export", "runs", "--tag", "") == ["loss"]
    assert offered("export", "mnist", "--tag", "l") == ["loss"]
    assert offered("export", "runs", "--tag", "x") == []
    assert offered("view", "tag", ":") == ["baseline"]
    assert offered("view", "not", ":", "tag", ":", "ba") == ["baseline"]
    assert offered("view", "state", ":", "k") == ["killed"]
    assert offered("runs", "show", "hparam", ":") == ["lr", "width"]
    assert offered("runs", "show", "hparam", ":", "w") == ["width", "width="]


def test_only_scalars_are_offered_to_export(aboard, offered, tree):
    assert aboard("index", tree).code == 0
    assert offered("export", str(tree), "--tag", "") == ["exact", "loss"]
    assert offered("ls", str(tree), "--tag", "") == ["exact", "loss", "notes", "picture"]


def test_runs_of_sources_are_offered(aboard, offered, tmp_path):
    for run in ("mnist/run1", "mnist/run2", "cifar10/run1"):
        log_run(tmp_path / "runs", run, [3.0])
    assert offered("export", "runs", "--run", "") == []  # nothing is read to complete
    assert aboard("index", "runs").code == 0
    everything = ["cifar10/run1", "mnist/run1", "mnist/run2"]
    for words in (["ls", "runs"], ["export", "runs"], ["ls"], ["ls", "mnist/run1"]):
        assert offered(*words, "--run", "") == everything
    assert offered("ls", "--tags", "runs", "--run", "mn") == ["mnist/run1", "mnist/run2"]
    assert offered("export", "runs/mnist", "--run", "") == ["run1", "run2"]
    assert offered("ls", "runs/mnist", "runs/cifar10", "--run", "c") == ["cifar10/run1"]
    assert offered("ls", "runs/mnist/run1", "runs/cifar10/run1", "--run", "") == [
        "mnist/run1", "cifar10/run1",
    ]  # fmt: skip
    assert offered("export", "runs", "--run", "x") == []
    assert aboard("ls", "runs/mnist", "runs/cifar10", "--run", "cifar10/run1").code == 0


def test_completion_imports_little(aboard, variables, tree, tmp_path, offered):
    assert aboard("index", tree).code == 0
    words = ["export", str(tree), "--tag", "lo"]
    assert offered(*words) == ["loss"]  # which remembers the options of the command
    script = (
        "import sys, aboard.cli\n"
        "assert aboard.cli._run() == 0\n"
        "slow = {'numpy', 'typer', 'rich'} & sys.modules.keys()\n"
        "assert not slow, slow"
    )
    asked = {"COMP_WORDS": "\n".join(["aboard", *words]), "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=variables | asked | {"_ABOARD_COMPLETE": "complete_bash"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["loss"]


@pytest.fixture
def completing(aboard):
    """Complete the end of a line as another shell does; return what it gets."""

    def ask(shell, line, **more):
        variables = {"_ABOARD_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, **more}
        return aboard(**variables)

    return ask


def test_zsh_gets_described_offers(completing):
    assert completing("zsh", "aboard ver").out == "_files\n"
    assert completing("zsh", "aboard stop --al").out == (
        """_arguments '*: :(("--all":"Stop all of your own boards."))'\n"""
    )
    assert completing("zsh", "aboard view --engine=st").out == (
        """_arguments '*: :(("--engine=stock"))'\n"""
    )


_LIKE_ZSH = """
_arguments() {
    local action=${1#*: :}
    eval "offers=( ${action:2:-2} )"
    printf '%s\\n' "${offers[@]}"
}
eval "$1"
"""


@pytest.mark.parametrize(
    "name", ["a $(touch ran)", r"a\$(touch ran)", "a`touch ran`", r"a\\`", 'a\'s "5"']
)
def test_zsh_gets_whole_names_and_runs_nothing_of_them(completing, tmp_path, name):
    (tmp_path / name).mkdir()
    answer = completing("zsh", "aboard view a").out
    # Bash evaluates what is within quotes as Zsh does.
    done = subprocess.run(
        ["bash", "-c", _LIKE_ZSH, "bash", answer],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{name}/:directory\n"
    assert not (tmp_path / "ran").exists()


def test_fish_gets_described_offers_or_offers_files(completing):
    asked = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    line = completing("fish", "aboard stop --al", **asked).out
    assert line == "--all\tStop all of your own boards.\n"
    assert completing("fish", "aboard stop --al", _TYPER_COMPLETE_FISH_ACTION="is-args").code == 0
    assert completing("fish", "aboard nosuch x", _TYPER_COMPLETE_FISH_ACTION="is-args").code == 1


def test_powershell_gets_described_offers(completing):
    word = {"_TYPER_COMPLETE_WORD_TO_COMPLETE": "--al"}
    line = completing("powershell", "aboard stop --al", **word).out
    assert line == "--all:::Stop all of your own boards.\n"


def test_another_shell_is_refused(completing):
    done = completing("tcsh", "aboard st")
    assert (done.code, done.err) == (1, "aboard: completion does not support 'tcsh'.\n")


def test_commands_and_options_are_offered(no_hub, offered):
    assert offered("st") == ["start", "stop"]
    assert offered("--debug", "vi") == ["view"]
    assert offered("ki") == []  # hidden, another name of stop
    assert "--all" in offered("kill", "--a")
    assert {"--version", "--debug", "--install-completion"} <= set(offered("--"))
    assert offered("boards", "ad") == ["add"]
    assert offered("boards", "--") == ["--help"]
    assert offered("boards", "nosuch", "a") == []


def test_options_are_offered_where_they_can_stand(offered):
    assert offered("runs", "list", "--limi") == ["--limit"]
    assert offered("runs", "list", "--limit", "3", "--limi") == []  # given
    assert offered("runs", "list", "--sort", "name", "--sor") == ["--sort"]  # may be repeated
    assert offered("runs", "--limit", "3", "--limi") == []
    assert offered("ls", "--", "--ta") == []
    assert {"--help", "-h"} <= set(offered("ls", "-"))
    assert offered("run", "python", "--ro") == []  # the program's own
    assert offered("run", "--ro") == ["--root"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stamp": 1}', '{"commands": {"stop": 5}}'])
def test_what_is_remembered_of_commands_may_be_damaged(offered, variables, content):
    assert offered("stop", "--al") == ["--all"]
    remembered = Path(variables["ABOARD_CACHE"]) / "completion.json"
    stamp = json.loads(remembered.read_text())["stamp"]
    assert remembered.stat().st_mode & 0o777 == 0o600
    remembered.write_text(
        content.replace('"commands"', f'"stamp": {json.dumps(stamp)}, "commands"')
    )
    assert offered("stop", "--al") == ["--all"]
    assert set(json.loads(remembered.read_text())["commands"]) == {"", "stop"}
    remembered.unlink()
    remembered.mkdir()
    assert offered("stop", "--al") == ["--all"]


def test_what_other_users_may_have_written_is_not_used(offered, variables):
    assert offered("stop", "--al") == ["--all"]
    remembered = Path(variables["ABOARD_CACHE"]) / "completion.json"
    remembered.write_text(remembered.read_text().replace("--all", "--alien"))
    assert offered("stop", "--al") == ["--alien"]
    remembered.parent.chmod(0o777)
    assert offered("stop", "--al") == ["--all"]


def test_what_is_remembered_of_other_versions_is_not_used(offered, variables):
    assert offered("stop", "--al") == ["--all"]
    remembered = Path(variables["ABOARD_CACHE"]) / "completion.json"
    held = json.loads(remembered.read_text()) | {"stamp": "0.0.1"}
    held["commands"]["stop"] = held["commands"][""]
    remembered.write_text(json.dumps(held))
    assert offered("stop", "--al") == ["--all"]
