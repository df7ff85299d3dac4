"""An embedding that was logged, both engines show: its vectors, labels and pictures."""

import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from aboard import EventWriter
from aboard.track.media import MediaLog
from tests.tensorboard.asking import Fast, Stock
from tests.tensorboard.serving import one_board

RNG = np.random.default_rng(1)
VECTORS = RNG.normal(size=(5, 3)).astype("f4")
PICTURES = RNG.integers(1, 255, (5, 5, 6, 3), np.uint8)


class Log(MediaLog):
    def __init__(self, directory):
        self.writer = EventWriter(directory)

    def _at(self, stage, step):
        return self.writer, step or 0

    def _write(self, values, step, stage):
        self.writer.add(values, step or 0)


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "logs")
    yield log
    log.writer.close()


@pytest.fixture(params=["fast", "stock"])
def served(request, index, log, tmp_path):
    """Open what was logged so far with either engine."""
    opened = []

    def serve():
        log.writer.flush()
        place = log.writer.directory
        if request.param == "stock":
            opened.append(Stock(tmp_path / "work", place))
        else:
            opened.append(Fast(one_board(index, place)))
        return opened[-1]

    yield serve
    for client in opened:
        client.close()


def vectors_of(client, name):
    answer = client.projector("tensor", run=".", name=name)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "float32").reshape(-1, 3)


def test_vectors_labels_and_pictures(log, served):
    log.log_embedding(
        "a/b", VECTORS, metadata=["a", "b\tc", "d\ne", "é", "f"], images=PICTURES, step=3
    )
    client = served()
    [embedding] = client.projector("info", run=".").json()["embeddings"]
    assert embedding["tensorName"] == "a/b:00003"
    assert embedding["tensorShape"] == [5, 3]
    assert embedding["sprite"]["singleImageDim"] == [6, 5]
    np.testing.assert_array_equal(vectors_of(client, "a/b:00003"), VECTORS)
    labels = client.projector("metadata", run=".", name="a/b:00003").content.decode()
    assert labels == "a\nb c\nd e\né\nf\n"
    sprite = client.projector("sprite_image", run=".", name="a/b:00003").content
    with Image.open(io.BytesIO(sprite)) as image:
        sheet = np.asarray(image)
    for place, picture in enumerate(PICTURES):
        top, left = place // 3 * 5, place % 3 * 6
        np.testing.assert_array_equal(sheet[top : top + 5, left : left + 6], picture)


def test_labels_of_several_columns(log, served):
    frame = pd.DataFrame({"name": list("abcde"), "size": range(5)})
    log.log_embedding("frame", VECTORS, metadata=frame)
    log.log_embedding("mappings", VECTORS, metadata=frame.to_dict("records"))
    log.log_embedding("numbers", VECTORS, metadata=np.arange(5))
    client = served()
    table = "name\tsize\na\t0\nb\t1\nc\t2\nd\t3\ne\t4\n"
    for name in ("frame", "mappings"):
        assert client.projector("metadata", run=".", name=f"{name}:00000").text == table
    assert client.projector("metadata", run=".", name="numbers:00000").text == "0\n1\n2\n3\n4\n"


def test_what_others_configured_stays(log, served):
    directory = log.writer.directory
    (directory / "theirs.tsv").write_text("1\t2\t3\n")
    config = directory / "projector_config.pbtxt"
    config.write_text('# mine\nembeddings { tensor_name: "theirs" tensor_path: "theirs.tsv" }')
    for name in ('a "quoted" \\ name', "..", "second", "second"):
        log.log_embedding(name, VECTORS + len(name), step=1)
    log.log_embedding("second", VECTORS, metadata=list("abcde"), step=1)
    assert config.read_text().startswith("# mine\n")
    client = served()
    names = [one["tensorName"] for one in client.projector("info", run=".").json()["embeddings"]]
    assert names == ["theirs", 'a "quoted" \\ name:00001', "..:00001", "second:00001"]
    for name in names:
        assert vectors_of(client, name).size
    np.testing.assert_array_equal(vectors_of(client, "second:00001"), VECTORS)


def test_a_disk_that_cannot_be_written_stops_nothing(log, capsys):
    config = log.writer.directory / "projector_config.pbtxt"
    config.mkdir()
    log.log_embedding("e", VECTORS)
    assert capsys.readouterr().err.startswith("aboard: the embedding 'e' was not written: ")
