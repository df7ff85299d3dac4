"""The layout: every module in src has a test module of its name, or is used in one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "aboard"
MODULES = sorted(
    path.relative_to(PACKAGE).with_suffix("")
    for path in PACKAGE.rglob("*.py")
    if path.name not in {"__init__.py", "__main__.py"}
)
TEXTS = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_has_a_test(module):
    own = ROOT / "tests" / module.parent / f"test_{module.name}.py"
    assert own in TEXTS or any(uses(text, module) for text in TEXTS.values())


def uses(text, module):
    """Return whether a test imports from a module, or imports it and names something in it."""
    dotted = ".".join(("aboard", *module.parts))
    package, _, name = dotted.rpartition(".")
    if re.search(rf"{re.escape(dotted)}\b", text):
        return True
    names = rf"from {re.escape(package)} import (?:\([^)]*|[^\n]*)\b{name}\b(?: as (\w+))?"
    imported = re.search(names, text)
    return bool(imported and re.search(rf"\b{imported[1] or name}\.\w", text))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation/design.md"])
def test_modules_that_are_named_exist(page):
    text = (ROOT / page).read_text()
    for name in re.findall(r"`((?:src/aboard/|[a-z]+/)[a-z_/]+\.py)`", text):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


def test_the_design_names_every_package():
    text = (ROOT / "docs/explanation/design.md").read_text()
    for package in PACKAGE.iterdir():
        if (package / "__init__.py").exists():
            assert f"| `{package.name}` |" in text, package.name


def test_the_design_names_every_module():
    text = (ROOT / "docs/explanation/design.md").read_text().partition("`console/`, beside")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)$", text, re.MULTILINE))
    for module in MODULES:
        package, *parts = module.parts
        if parts and package != "cli":  # of which the row says how they are named
            name = f"{parts[0]}/" if parts[1:] else parts[0]
            assert f"`{name}`" in rows[package], module


def test_the_guide_leads_to_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for name in re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text):
        assert (ROOT / name).exists(), name
