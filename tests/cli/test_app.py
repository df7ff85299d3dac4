"""The commands put together, and how the process of one ends."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.main import get_command

import aboard as library
from aboard.cli.app import COMMANDS, _command, app, run


def arguments(command, context) -> Iterator[tuple[str, str, bool]]:
    for child in getattr(command, "commands", {}).values():
        yield from arguments(child, context)
    for one in command.params:
        if one.param_type_name == "argument":
            yield command.name, one.make_metavar(context, usage=True), one.nargs == -1


def test_an_argument_that_may_be_repeated_says_so():
    command = get_command(app)
    found = list(arguments(command, typer.Context(command)))
    assert ("view", "[SOURCE]...", True) in found
    assert [one for one in found if ("..." in one[1]) is not one[2]] == []


def test_what_was_registered_for_the_exit_is_called():
    program = (
        "import atexit, sys\n"
        "atexit.register(print, 'called')\n"
        "sys.argv = ['aboard', '--version']\n"
        "from aboard.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "called")


def test_the_help_has_the_first_sentence_of_every_command():
    for name, entry in COMMANDS.items():
        text = inspect.cleandoc(_command(name).help)
        assert re.split(r"(?<=\.)\s", text)[0] == entry.summary, name


def commands(name, command) -> Iterator[tuple[list[str], object]]:
    yield [name], command
    for below, child in getattr(command, "commands", {}).items():
        yield [name, below], child


def test_help_is_not_cut_at_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for path, command in (one for name in COMMANDS for one in commands(name, _command(name))):
        assert run([*path, "--help"]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown, path
        context = typer.Context(command)
        options = [one for one in command.params if one.param_type_name == "option"]
        for one in options:
            # A range such as [x>=1] may be on a line of its own.
            metavar = "" if one.is_flag else one.make_metavar(context).split()[0]
            assert metavar in shown, (path, one.opts)


@pytest.mark.parametrize("group", ["boards", "image"])
def test_a_group_that_shows_nothing_prints_its_help(group, capsys):
    assert run([group]) == 0
    alone = capsys.readouterr()
    assert run([group, "--help"]) == 0
    assert alone.out.strip() == capsys.readouterr().out.strip()
    assert alone.err == ""


def test_the_list_of_commands_imports_none_of_them():
    script = (
        "import sys; from aboard.cli.app import run; run(['--help'])\n"
        "assert 'numpy' not in sys.modules, 'numpy'\n"
        "names = [one for one in sys.modules if one.startswith('aboard.cli.')]\n"
        "print('modules:', *sorted(one.rpartition('.')[2] for one in names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "modules: app completion console"
    assert "Boards on a hub" in done.stdout


def test_version(aboard, variables):
    compiled = aboard("--version").out.splitlines()
    assert compiled[0] == f"aboard {library.__version__}"
    assert compiled[2].startswith("tensorboard: 2.")
    assert compiled[3].startswith(f"index: {variables['ABOARD_CACHE']}/index-")
    fallback = aboard("--version", ABOARD_PURE_PYTHON="1").out
    assert "scanning core: Python fallback (ABOARD_PURE_PYTHON is set; slower)" in fallback


def test_help_is_shown_when_nothing_is_asked(aboard):
    result = aboard()
    assert result.code == 0
    assert "Every training run, on one board." in result.out


def test_help_has_examples(aboard):
    for command in ("view", "ls", "index", "export", "doctor", "demo"):
        assert f"aboard {command}" in aboard(command, "--help").out.split("Examples")[1]


def test_completion_can_be_installed(aboard):
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "complete" in aboard("--show-completion", "bash", **named).out
