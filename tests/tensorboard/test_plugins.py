"""The Projector tab in both engines: the same answers, and nothing from outside of a run."""

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from aboard import EventWriter
from aboard.index.library import Member
from aboard.storage.base import open_storage
from aboard.tensorboard import plugins
from aboard.tensorboard.board import Board
from aboard.track.media import MediaLog
from tests.tensorboard.client import Fast, Stock, write_scalars
from tests.tensorboard.servers import one_board
from tests.waiting import until

TORCH = Path(__file__).parent.parent / "fixtures" / "torch"
TENSOR = "embedding:00001"
CONFIG = "projector_config.pbtxt"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(plugins, "_POLL_SECONDS", 0.02)


@pytest.fixture
def logs(tmp_path):
    root = tmp_path / "logs"
    shutil.copytree(TORCH / "every-kind", root / "run")
    return root


@pytest.fixture(params=["fast", "stock"])
def engine(request, index, tmp_path):
    """Open places with either engine: `engine(place, …)`."""
    opened = []

    def open_board(*places, **options):
        if request.param == "stock":
            opened.append(Stock(tmp_path / "work", *places, **options))
        else:
            opened.append(Fast(one_board(index, *places, **options)))
        return opened[-1]

    yield open_board
    for client in opened:
        client.close()


def is_enabled(client):
    return client.json("data/plugins_listing")["projector"]["enabled"]


def test_the_routes_answer_from_the_files_of_the_run(engine, logs):
    client = engine(logs)
    assert is_enabled(client)
    assert client.projector("runs").json() == ["run"]
    [embedding] = client.projector("info", run="run").json()["embeddings"]
    assert (embedding["tensorName"], embedding["tensorShape"]) == (TENSOR, [6, 4])
    tensor = client.projector("tensor", run="run", name=TENSOR)
    written = np.loadtxt(logs / "run/00001/embedding/tensors.tsv", dtype="float32")
    np.testing.assert_array_equal(np.frombuffer(tensor.content, "float32").reshape(6, 4), written)
    few = client.projector("tensor", run="run", name=TENSOR, num_rows="2")
    assert len(few.content) == 2 * 4 * 4
    metadata = client.projector("metadata", run="run", name=TENSOR)
    assert metadata.text == (logs / "run/00001/embedding/metadata.tsv").read_text()
    sprite = client.projector("sprite_image", run="run", name=TENSOR)
    assert sprite.headers["content-type"].startswith("image/png")
    assert sprite.content == (logs / "run/00001/embedding/sprite.png").read_bytes()
    assert client.projector("info", run="other").status_code == 400


def test_the_page_of_the_tab_is_served(engine, logs):
    client = engine(logs)
    entry = client.get("data/plugin_entry.html", name="projector")
    assert 'import("./index.js")' in entry.text
    assert "projector_binary.html" in client.projector("index.js").text
    for name in ("projector_binary.html", "projector_binary.js"):
        assert client.projector(name).status_code == 200


def test_runs_of_several_places_keep_the_names_of_the_board(engine, logs, tmp_path):
    shutil.copytree(TORCH / "every-kind", tmp_path / "more")
    client = engine(f"first={logs}", tmp_path / "more")
    assert client.projector("runs").json() == ["first/run", "more"]
    assert client.projector("metadata", run="more", name=TENSOR).status_code == 200
    hidden = engine(logs, tmp_path / "more", exclude=("logs/*",))
    assert hidden.projector("runs").json() == ["more"]


def test_a_board_without_embeddings_has_no_tab(engine, tmp_path):
    write_scalars(tmp_path / "logs", 1)
    client = engine(tmp_path / "logs")
    assert not is_enabled(client)
    assert client.projector("runs").json() == []


def test_embeddings_that_are_written_later_appear(engine, tmp_path):
    root = tmp_path / "logs"
    write_scalars(root, 1)
    client = engine(root)
    assert not is_enabled(client)
    (root / CONFIG).write_text('embeddings { tensor_path: "a.tsv" }')
    (root / "a.tsv").write_text("1\t2\n3\t4\n")
    until(lambda: is_enabled(client))
    [embedding] = client.projector("info", run=".").json()["embeddings"]
    assert (embedding["tensorName"], embedding["tensorShape"]) == ("a.tsv", [2, 2])
    (root / "a.tsv").write_text("1\t2\n3\t4\n5\t6\n")

    def rows():
        return client.projector("info", run=".").json()["embeddings"][0]["tensorShape"][0]

    until(lambda: rows() == 3)
    assert len(client.projector("tensor", run=".", name="a.tsv").content) == 3 * 2 * 4


def test_a_configuration_beside_no_events_counts_for_the_source(engine, tmp_path):
    root = tmp_path / "logs"
    write_scalars(root / "train", 1)
    np.arange(6, dtype="float32").tofile(root / "a.bytes")
    (root / CONFIG).write_text(
        'embeddings { tensor_name: "e:0" tensor_path: "a.bytes" tensor_shape: 3 tensor_shape: 2 }'
    )
    client = engine(root)
    assert client.projector("runs").json() == ["."]
    assert len(client.projector("tensor", run=".", name="e").content) == 24


def test_a_configuration_among_the_files_of_plugins_is_found(engine, logs, tmp_path):
    assets = logs / "run" / "plugins" / "org_tensorflow_tensorboard_projector"
    assets.mkdir(parents=True)
    (assets / CONFIG).write_text('embeddings { tensor_path: "a.tsv" }')
    (assets / "a.tsv").write_text("1\t2\n")
    client = engine(logs)
    [embedding] = client.projector("info", run="run").json()["embeddings"]
    assert embedding["tensorName"] == "a.tsv"
    assert len(client.projector("tensor", run="run", name="a.tsv").content) == 8


def test_a_broken_configuration_hides_no_other(engine, logs, caplog):
    for name, text in {
        "a": "embeddings {",
        "b": "\xff",
        "c": "embeddings { tensor_name: 'x' }",
    }.items():
        write_scalars(logs / name, 1)
        (logs / name / CONFIG).write_bytes(text.encode("latin-1"))
    write_scalars(logs / "d", 1)
    (logs / "d" / CONFIG).write_text('embeddings { tensor_path: "gone.tsv" }')
    client = engine(logs)
    assert client.projector("runs").json() == ["d", "run"]
    gone = client.projector("tensor", run="d", name="gone.tsv")
    assert gone.status_code == 400
    assert "does not exist" in gone.text
    assert f"{logs}/a/{CONFIG} is not a projector's configuration" in caplog.text
    assert "'x', which is in a checkpoint and not in a file" in caplog.text


@pytest.mark.parametrize(
    "path", ["{outside}", "../outside.tsv", "link.tsv", "sub/../../outside.tsv"]
)
def test_a_path_that_leads_out_of_the_run_is_refused(path, engine, tmp_path):
    root = tmp_path / "logs"
    outside = root / "outside.tsv"
    write_scalars(root / "run", 1)
    outside.write_text("1\t2\nsecret\n")
    (root / "run" / "link.tsv").symlink_to(outside)
    path = path.format(outside=outside)
    (root / "run" / CONFIG).write_text(
        f'embeddings {{ tensor_name: "e" tensor_path: "{path}" metadata_path: "{path}"'
        f' bookmarks_path: "{path}" sprite {{ image_path: "{path}" }} }}'
    )
    client = engine(root)
    for route in ("tensor", "metadata", "bookmarks", "sprite_image"):
        answer = client.projector(route, run="run", name="e")
        assert answer.status_code == 400
        assert answer.text == f'Asset path "{path}" resolves outside the config directory'


def test_a_pipe_blocks_nobody(engine, logs):
    os.mkfifo(logs / "run" / "pipe")
    config = logs / "run" / CONFIG
    config.write_text(config.read_text().replace("00001/embedding/metadata.tsv", "pipe"))
    client = engine(logs)
    assert client.projector("metadata", run="run", name=TENSOR).status_code == 400


def test_each_board_has_its_own_embeddings(index, logs, tmp_path):
    write_scalars(tmp_path / "plain", 1)
    boards = one_board(index, logs)
    index.refresh(Member.parse(str(tmp_path / "plain")).source)
    boards.add(Board("plain", "Plain", (Member.parse(str(tmp_path / "plain")),)))
    with_embeddings, plain = Fast(boards), Fast(boards, "plain")
    plain.app = with_embeddings.app
    assert is_enabled(with_embeddings)
    assert not is_enabled(plain)
    assert plain.projector("metadata", run="run", name=TENSOR).status_code == 400
    boards.add(Board("plain", "Plain", (Member.parse(str(logs)),)))
    assert is_enabled(plain)
    boards.remove("plain")
    assert plain.projector("runs").status_code == 404
    for client in (with_embeddings, plain):
        client.close()


def in_a_bucket(logs, bucket):
    storage = open_storage(bucket)
    for path in logs.rglob("*"):
        if path.is_file():
            storage.write(str(path.relative_to(logs)), path.read_bytes())
    return bucket


def test_the_fast_engine_says_what_to_do_for_a_bucket(index, logs, tmp_path):
    bucket = in_a_bucket(logs, f"memory://{tmp_path.name}/logs")
    client = Fast(one_board(index, bucket))
    assert not is_enabled(client)
    for answer in (client.projector("runs"), client.projector("index.js")):
        assert bucket in answer.text
        assert "Open the board with `--engine stock`, which copies them." in answer.text
    assert client.projector("runs").status_code == 400
    assert client.projector("index.js").headers["content-type"].startswith("application/javascript")
    mixed = Fast(one_board(index, bucket, f"here={logs}"))
    assert mixed.projector("runs").json() == ["here/run"]
    for one in (client, mixed):
        one.close()


def test_the_stock_engine_shows_the_embeddings_of_a_bucket(logs, tmp_path):
    bucket = in_a_bucket(logs, f"memory://{tmp_path.name}/logs")
    client = Stock(tmp_path / "work", f"far={bucket}")
    assert is_enabled(client)
    assert client.projector("runs").json() == ["far/run"]
    for route in ("tensor", "metadata", "sprite_image"):
        assert client.projector(route, run="far/run", name=TENSOR).status_code == 200
    client.close()


# Both engines show a logged embedding: its vectors, labels and pictures.


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
