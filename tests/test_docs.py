"""The documentation: complete, linked, and true.

On the pages in RUN every `console` and `python` block is run, top to bottom, in a directory with
the demo's logs. What follows a `$ ` command, or stands in the `text` block after a `python` block,
is the expected output: `…` stands for anything, alone on a line for any lines, and numbers and
their units may differ, because they depend on the machine and the hour.
"""

import contextlib
import dataclasses
import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import typer

import aboard
from aboard.cli.app import app
from aboard.cli.demo import train_all
from aboard.runs.naming import Grouping
from aboard.sdk.personal import stop_personal

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
RUN = [
    "README.md",
    "docs/tutorial.md",
    "docs/how-to/export.md",
    "docs/how-to/read-from-python.md",
    "docs/how-to/damaged-files.md",
    "docs/how-to/empty-board.md",
    "docs/how-to/track.md",
    "docs/how-to/record-a-program.md",
    "docs/how-to/boards.md",
]


def page(name: str) -> str:
    return (DOCS / name).read_text()


def test_no_page_installs_aboard_from_a_package_index():
    for path in PAGES:
        assert not re.search(r"pip install[^\n]* \"?aboard\b", path.read_text()), path


# Complete.


@pytest.mark.parametrize(("tool", "name"), [("cli", "cli"), ("engine", "engines")])
def test_generated_pages_are_up_to_date(tool, name):
    path = ROOT / "tools" / f"{tool}_reference.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert page(f"reference/{name}.md") == module.reference(), "run `make docs`"


def test_every_command_and_option_is_documented():
    reference = page("reference/cli.md")
    for name, command in all_commands().items():
        section = reference.split(f"## aboard {name}\n")[1].split("\n## ")[0]
        assert command.help, name
        assert "Examples" in section, name
        for parameter in command.params:
            assert parameter.help, (name, parameter.name)
            for option in options_of(parameter):
                assert f"`{option}" in section, (name, option)


def all_commands() -> dict[str, typer.core.TyperCommand]:
    """Return every command by its words, such as `ls` and `runs show`."""
    found = {}
    pending = [((), typer.main.get_command(app))]
    while pending:
        above, group = pending.pop()
        for name, command in group.commands.items():
            found[" ".join((*above, name))] = command
            if hasattr(command, "commands"):
                pending.append(((*above, name), command))
    return found


def options_of(parameter: typer.core.TyperOption) -> list[str]:
    if parameter.param_type_name != "option":
        return []
    return [*parameter.opts, *parameter.secondary_opts]


def settings_in_source() -> set[str]:
    patterns = [
        r"os\.environ(?:\.get\(|\[)\s*\"([A-Z][A-Z0-9_]+)\"",
        r"\"([A-Z][A-Z0-9_]+)\" (?:not )?in os\.environ",
        r"envvar=\"([A-Z][A-Z0-9_]+)\"",
        r"\"(ABOARD_[A-Z0-9_]+)\"",
    ]
    sources = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
    found = {
        name
        for text in sources.values()
        for pattern in patterns
        for name in re.findall(pattern, text)
    }
    launchers = sources[ROOT / "src/aboard/track/environment.py"]
    found |= set(re.findall(r"\"((?:[A-Z][A-Z0-9]*_[A-Za-z0-9_]+)|RANK)\"", launchers))
    clouds = sources[ROOT / "src/aboard/storage/settings.py"]
    prefixes = "AWS|AZURE|GOOGLE|CLOUDSDK|STORAGE|OSS|ALIBABA"
    return found | set(re.findall(rf"\b((?:{prefixes})_[A-Z0-9_]*[A-Z0-9])\b", clouds))


def test_every_setting_is_documented():
    found = settings_in_source()
    assert {"ABOARD_CACHE", "ABOARD_TOKEN", "DISPLAY", "NO_COLOR", "AWS_REGION"} <= found
    documented = set(re.findall(r"`([A-Z][A-Za-z0-9_]+)`", page("reference/settings.md")))
    assert found - documented == set()
    assert documented - found == set(), "documented, but read nowhere"


def test_every_public_name_is_documented():
    reference = page("reference/python.md")
    for name in aboard.__all__:
        assert f"`aboard.{name}" in reference, name
    for field in dataclasses.fields(aboard.Board):
        assert f"`{field.name}`" in reference, field.name
    kinds = (aboard.Logs, aboard.EventWriter, aboard.Run, aboard.SummaryWriter)
    for kind in (*kinds, aboard.Board, aboard.Client):
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_") and (
                inspect.isroutine(member) or isinstance(member, property)
            ):
                assert re.search(rf"`{name}[`(]", reference), name


def test_every_option_of_a_board_is_documented():
    from aboard.boards.model import BoardOptions

    (line,) = re.findall(r"^\| `create\((.*?)\)`", page("reference/python.md"), re.MULTILINE)
    assert {"selectors", "new", *BoardOptions.__annotations__} == set(re.findall(r"\w+", line))


def test_every_field_of_groups_is_documented():
    from aboard.runs.question import BadQuestion

    with pytest.raises(BadQuestion) as error:
        Grouping.parse(["metrics.loss"])
    known = re.findall(r"[\w.]+", error.value.hint.removeprefix("Use "))
    listed = page("how-to/compare.md").split("`--group-by` takes")[1].split("Several")[0]
    assert set(re.findall(r"`([\w.]+)`", listed)) == {one.rstrip(".") for one in known}


def test_every_json_field_is_documented(tmp_path, monkeypatch, capsys):
    import orjson

    from aboard.cli.app import run

    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    train_all(tmp_path / "logs", 0, threading.Event())
    documented = set(re.findall(r"`(\w+)`", page("reference/json.md")))
    kinds = {"histograms", "images", "hparams", "pr_curves", "text"}
    for command in (["ls", "--tags"], ["index"], ["doctor"]):
        run([*command, "--json", str(tmp_path / "logs"), "missing"])
        fields = field_names(orjson.loads(capsys.readouterr().out))
        assert fields - kinds - documented == set()


def test_every_field_of_a_record_is_documented():
    from aboard.runs.manifest import Manifest

    record = Manifest("run1")
    record.begin(at=1, host="here", pid=1)
    fields = field_names(json.loads(record.to_json()))
    assert fields <= set(re.findall(r"`(\w+)`", page("reference/run-json.md")))


def test_every_field_of_listed_runs_is_documented(tmp_path, capsys):
    from aboard.cli.app import run
    from aboard.runs.manifest import Manifest

    record = Manifest("run1", "a")
    record.begin(at=1, host="here", pid=1)
    (tmp_path / "a" / "run1").mkdir(parents=True)
    (tmp_path / "a" / "run1" / "run.json").write_bytes(record.to_json())
    section = page("reference/json.md").split("## `aboard runs`")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    for words in ("list", "show a/run1", "tag a --add=tags", "note a text", "delete a --yes"):
        run(["runs", *words.split(), "--root", str(tmp_path), "--json"])
        assert field_names(json.loads(capsys.readouterr().out)) <= documented, words


def test_every_field_of_a_recorded_program_is_documented(tmp_path):
    command = [sys.executable, "-m", "aboard", "run", "--json", "--root", tmp_path, "--", "true"]
    result = subprocess.run(command, capture_output=True, check=True, timeout=180)
    fields = field_names([json.loads(line) for line in result.stderr.splitlines()])
    section = page("reference/json.md").split("## `aboard run`")[1]
    assert fields <= set(re.findall(r"`(\w+)`", section))


def test_every_field_of_a_served_board_is_documented(tmp_path):
    import orjson

    demo = [sys.executable, "-m", "aboard", "demo", "--seconds", "0", "--no-browser", "--json"]
    environment = {**os.environ, "ABOARD_CACHE": str(tmp_path / "cache")}
    printed = subprocess.check_output(
        [*demo, str(tmp_path / "logs")], env=environment, stderr=subprocess.DEVNULL, timeout=180
    )
    fields = field_names(orjson.loads(printed))
    assert fields == {"url", "address", "console", "pid"}
    assert fields <= set(re.findall(r"`(\w+)`", page("reference/json.md")))


def test_every_finding_is_documented():
    package = ROOT / "src/aboard"
    sources = [*(package / "doctor").glob("*.py"), package / "cli" / "doctor.py"]
    text = "".join(path.read_text() for path in sources)
    codes = set(re.findall(r"Finding\(\s*\"([a-z-]+)\"", text))
    assert {"no-such-run", "board-state", "unreadable", "restarts"} <= codes
    assert len(codes) > 25
    assert codes - set(re.findall(r"`([a-z-]+)`", page("how-to/empty-board.md"))) == set()


def field_names(document: object) -> set[str]:
    if isinstance(document, dict):
        return set(document).union(*map(field_names, document.values()))
    return set().union(*map(field_names, document)) if isinstance(document, list) else set()


# Linked.


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text()), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_of_the_checkout_that_a_page_names_exist(path):
    names = re.findall(r"`((?:bench|deploy|src|tests|tools)/[\w./-]+)", path.read_text())
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_every_page_is_in_the_table_of_contents():
    contents = page("index.md")
    for path in DOCS.rglob("*.md"):
        name = str(path.relative_to(DOCS))
        assert name == "index.md" or f"({name})" in contents, name


# True.


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_not_run_exist(path):
    known = all_commands()
    shown = [block for kind, block in blocks(path.read_text()) if kind == "sh"]
    for line in "".join(shown).splitlines():
        words = shlex.split(line, comments=True)
        words = words[: words.index("--")] if "--" in words else words
        if words[:1] != ["aboard"]:
            continue
        assert words[1] in known, line
        command = known.get(" ".join(words[1:3])) or known[words[1]]
        # A group lists when it is not told what else to do.
        command = getattr(command, "commands", {}).get("list", command)
        options = {one for each in command.params for one in options_of(each)}
        given = {word.partition("=")[0] for word in words[2:] if word.startswith("-")}
        assert given <= options, line


def blocks(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [(kind, textwrap.dedent(block)) for _, kind, block in found]


def commands(block: str) -> list[tuple[str, str]]:
    """Split a console block into commands, which may go on after `> `, and expected outputs."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif line.startswith("> "):
            found[-1] = (found[-1][0] + line[2:], "")
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def assert_shows(shown: str, expected: str) -> None:
    """Compare an output with what the page says, numbers and alignment aside."""

    def plain(text: str) -> list[str]:
        numbers = re.sub(r"(?<![\w.])-?\d[\d,.:e+-]*", "0", text)
        amounts = re.sub(r"\b0( (s|min|h|[kMG]?B)|[smhd])\b", "0", numbers)
        return [" ".join(line.split()) for line in amounts.strip().splitlines()]

    pattern = ""
    for line in plain(expected):
        words = ".*".join(re.escape(word) for word in line.split("…"))
        pattern += r"(.*\n)*" if line == "…" else words + r"\n"
    actual = "".join(line + "\n" for line in plain(shown))
    assert re.fullmatch(pattern, actual), f"{shown}\n--- but the page says ---\n{expected}"


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("demo") / "demo-logs"
    train_all(directory, 0, threading.Event())
    return directory


@pytest.fixture
def own_state(tmp_path, monkeypatch):
    """Keep a page off the developer's own hub; end the one that it starts."""
    for name in ("ABOARD_HUB", "ABOARD_HUB_TOKEN", "ABOARD_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    yield
    stop_personal()


@pytest.mark.parametrize("name", RUN)
def test_examples_print_what_the_page_shows(name, demo, own_state, tmp_path, monkeypatch):
    import shutil

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    text = (ROOT / name).read_text()
    if "aboard demo demo-logs" not in text:
        shutil.copytree(demo, tmp_path / "demo-logs")
    variables: dict[str, object] = {}
    printed = ""
    for kind, block in blocks(text):
        if kind == "console":
            for command, expected in commands(block):
                assert_shows(in_shell(command), expected)
        elif kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block, name, "exec"), variables)
            printed = out.getvalue()
        elif kind == "text":
            assert_shows(printed, block)
    for value in variables.values():
        if isinstance(value, aboard.Logs):
            value.close()


def in_shell(command: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=180,
    )
    return done.stdout
