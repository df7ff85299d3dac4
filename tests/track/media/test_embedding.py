"""Embeddings: the files of the projector, and the list of them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import tensorboard as theirs

import aboard

RNG = np.random.default_rng(1)


def test_embeddings(tmp_path):
    matrix = torch.from_numpy(RNG.normal(size=(5, 3)).astype(np.float32))
    pictures = torch.from_numpy(RNG.random((5, 3, 4, 6)).astype(np.float32))
    for name, kind in (("theirs", theirs.SummaryWriter), ("ours", aboard.SummaryWriter)):
        with kind(str(tmp_path / name)) as writer:
            writer.add_embedding(matrix, list("abcde"), pictures, 3, "a/b")
            writer.add_embedding(
                matrix, [[n, n / 2] for n in range(5)], None, 4, "t", ["n", "half"]
            )
            writer.add_embedding(matrix, label_img=pictures[:, :1])

    def files(root):
        found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
        return {path: at for path, at in found.items() if "tfevents" not in path.name}

    expected, found = files(tmp_path / "theirs"), files(tmp_path / "ours")
    assert set(found) == set(expected)
    for path, at in expected.items():
        if path.suffix == ".png":
            with Image.open(at) as one, Image.open(found[path]) as other:
                np.testing.assert_array_equal(np.asarray(other), np.asarray(one))
        else:
            assert found[path].read_text() == at.read_text()


def test_embeddings_that_do_not_fit(tmp_path):
    with aboard.SummaryWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match="embedding 'e': expected labels for 2 vectors, got 1"):
            writer.add_embedding(np.zeros((2, 2)), ["a"], tag="e")
        with pytest.raises(ValueError, match="'default': expected images for 2 vectors, got 1"):
            writer.add_embedding(np.zeros((2, 2)), label_img=np.zeros((1, 3, 2, 2)))
        with pytest.raises(ValueError, match=r"expected a matrix, one vector a row, got the shape"):
            writer.add_embedding(np.zeros(2))
    assert not (tmp_path / "projector_config.pbtxt").exists()
