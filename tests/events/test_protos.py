"""Which TensorBoards can be used, and what is said of the others."""

import pytest
from google import protobuf

from aboard.events import protos

protos.keep_tensorflow_out()

from tensorboard import version  # noqa: E402


@pytest.mark.parametrize(
    ("package", "numpy", "protobuf_version"),
    [("numpy 2.0.0", "2.0.0", "4.25.9"), ("protobuf 5.26.1", "1.26.4", "5.26.1")],
)
def test_an_old_tensorboard_beside_newer_packages_says_what_fits(
    monkeypatch, package, numpy, protobuf_version
):
    monkeypatch.setattr(version, "VERSION", "2.16.2")
    monkeypatch.setattr("numpy.__version__", numpy)
    monkeypatch.setattr(protobuf, "__version__", protobuf_version)
    with pytest.raises(ImportError) as caught:
        protos._check_versions.__wrapped__()
    fits = "pip install 'tensorboard>=2.17', or 'numpy<2' 'protobuf<5'"
    assert str(caught.value) == f"TensorBoard 2.16.2 does not work with {package}: {fits}"


@pytest.mark.parametrize("tensorboard", ["2.16.2", "2.17.0", "2.21.0", "3.0"])
def test_other_pairs_are_fine(monkeypatch, tensorboard):
    monkeypatch.setattr(version, "VERSION", tensorboard)
    if tensorboard == "2.16.2":
        monkeypatch.setattr("numpy.__version__", "1.26.4")
        monkeypatch.setattr(protobuf, "__version__", "4.25.9")
    protos._check_versions.__wrapped__()
