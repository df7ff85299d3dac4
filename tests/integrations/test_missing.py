"""Integrations whose framework is not installed say what to install, in one line."""

import subprocess
import sys

import pytest

WANTED = {
    "torch": ("torch", "torch"),
    "keras": ("keras", "keras"),
    "transformers": ("transformers", "transformers"),
    "lightning": ("lightning", "lightning"),
    "estimator": ("tensorflow", "'tensorflow<2.16'"),
    "tensorpack": ("tensorpack", "tensorpack"),
    "xmanager": ("xmanager", "xmanager"),
}


@pytest.mark.parametrize("module", WANTED)
def test_a_missing_framework_is_named_with_what_to_install(module):
    package, install = WANTED[module]
    code = f"import sys; sys.modules[{package!r}] = None; import aboard.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = f"this needs {package}, which is not installed: pip install {install}"
    assert done.stderr.splitlines()[-1] == f"ImportError: {expected}"
    assert "During handling" not in done.stderr


def test_another_missing_module_is_not_taken_for_the_framework(tmp_path):
    (tmp_path / "tensorpack.py").write_text("import not_there_at_all\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import aboard.integrations.tensorpack"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'not_there_at_all'" in done.stderr.splitlines()[-1]


def test_integrations_import_no_framework_before_they_are_used():
    frameworks = {"torch", "keras", "transformers", "lightning", "tensorflow", "tensorpack"}
    code = (
        "import sys, aboard.integrations, aboard.track.run, aboard.track.start;"
        f"print(sorted({frameworks!r} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
