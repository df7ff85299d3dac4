"""What is said of packages that are not installed."""

from importlib import import_module

import pytest

from aboard.requirements import require, requires


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
