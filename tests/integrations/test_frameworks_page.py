"""The page about frameworks: its example runs, and the names in all others exist."""

import ast
import re
from pathlib import Path

import aboard
from tests.integrations.trainings import ROOT

PAGE = (ROOT / "docs" / "how-to" / "frameworks.md").read_text()
LAUNCHERS = (ROOT / "docs" / "how-to" / "launchers.md").read_text()


def blocks(kind: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_example_of_pytorch_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    exec(compile(example, "frameworks.md", "exec"), {})
    with aboard.open(tmp_path / "runs" / "regression" / "run1") as logs:
        assert logs.series("train", "loss").steps.tolist() == list(range(1, 101))
        logged = {tag.name for tag in logs.select(run="train")}
    assert logged == set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))


def test_every_module_is_on_the_page_and_has_the_names_that_are_imported_there():
    found = set()
    for block in (*blocks("py"), *blocks("python"), *blocks("py", LAUNCHERS)):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("aboard."):
                source = ROOT / "src" / Path(*node.module.split(".")).with_suffix(".py")
                defined = {
                    one.name
                    for one in ast.parse(source.read_text()).body
                    if isinstance(one, ast.ClassDef | ast.FunctionDef)
                }
                assert {alias.name for alias in node.names} <= defined, block
                found.add(source.stem)
    modules = {path.stem for path in (ROOT / "src/aboard/integrations").glob("*.py")}
    assert found == modules - {"__init__"}
