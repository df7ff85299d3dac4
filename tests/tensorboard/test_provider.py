"""The provider answers for the boards, runs and tags that are asked for, and no others."""

import math
import string
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard import errors
from tensorboard.data.provider import RunTagFilter
from tensorboard.plugins.custom_scalar import layout_pb2

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.tensorboard.board import Board
from aboard.tensorboard.provider import (
    BadKey,
    BlobKey,
    BoardDataProvider,
    BoardRequest,
    Signer,
    current_request,
)
from tests import summaries
from tests.tensorboard.servers import one_board

SIGNER = Signer(b"secret")


@pytest.fixture
def provider(index, every_kind):
    boards = one_board(index, every_kind)
    boards.add(Board("empty", "Nothing", ()))
    return BoardDataProvider(boards, SIGNER)


@pytest.fixture
def ask(provider):
    """Ask the provider about a board as a plugin does."""

    def ask(verb, plugin, runs=None, tags=None, board="board", **options):
        chosen = None if runs is tags is None else RunTagFilter(runs, tags)
        return getattr(provider, verb)(
            experiment_id=board, plugin_name=plugin, run_tag_filter=chosen, **options
        )

    return ask


@pytest.fixture
def request_to():
    """Be in the middle of a request to a board."""
    tokens = []
    yield lambda board: tokens.append(current_request.set(BoardRequest(board)))
    for token in reversed(tokens):
        current_request.reset(token)


# Filters.


def names(found):
    return {(run, tag) for run, tags in found.items() for tag in tags}


def test_a_filter_chooses_runs_and_tags(ask):
    both = {("sweep/first", "loss"), ("sweep/second", "loss")}
    found = ask("list_scalars", "scalars", ["sweep/first", "sweep/second"], ["loss"])
    assert names(found) == both
    assert names(ask("list_scalars", "scalars", {"sweep/first"}, ("loss", "wide"))) == {
        ("sweep/first", "loss"),
        ("sweep/first", "wide"),
    }
    assert {run for run, _ in names(ask("list_scalars", "scalars", ["."]))} == {"."}
    assert {tag for _, tag in names(ask("list_scalars", "scalars", tags=["loss"]))} == {"loss"}


@pytest.mark.parametrize(
    ("runs", "tags"), [([], None), (None, []), (["no"], None), (None, ["no"]), (["."], ["no"])]
)
@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("list_scalars", {}),
        ("read_scalars", {"downsample": 10}),
        ("read_last_scalars", {}),
        ("list_tensors", {}),
        ("read_tensors", {"downsample": 10}),
        ("list_blob_sequences", {}),
        ("read_blob_sequences", {"downsample": 10}),
    ],
)
def test_unknown_names_match_nothing(ask, verb, options, runs, tags):
    for plugin in ("scalars", "histograms", "images"):
        assert ask(verb, plugin, runs, tags, **options) == {}


def test_a_plugin_sees_its_own_tags_of_the_class_it_asks_for(ask):
    assert ask("list_scalars", "images") == {}
    assert ask("list_tensors", "images") == {}
    assert ask("list_blob_sequences", "scalars") == {}
    assert ask("list_scalars", "no such plugin") == {}


def test_an_unknown_board_is_not_found(provider, ask):
    with pytest.raises(errors.NotFoundError, match="board 'other' not found"):
        ask("list_scalars", "scalars", board="other")
    for verb in ("list_runs", "list_plugins", "experiment_metadata"):
        with pytest.raises(errors.NotFoundError):
            getattr(provider, verb)(experiment_id="other")


def test_a_board_of_nothing_is_empty(provider, ask):
    assert provider.list_runs(experiment_id="empty") == []
    assert provider.list_plugins(experiment_id="empty") == []
    assert ask("read_scalars", "scalars", board="empty", downsample=5) == {}


# Numbers of points.


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (2, 2), (4, 4), (100, 4)])
def test_as_many_values_as_are_asked_for(ask, limit, count):
    scalars = ask("read_scalars", "scalars", ["."], ["loss"], downsample=limit)["."]["loss"]
    images = ask("read_blob_sequences", "images", ["."], ["grey/one"], downsample=limit)
    histograms = ask("read_tensors", "histograms", ["."], ["weights"], downsample=limit)
    assert len(scalars) == len(images["."]["grey/one"]) == count
    assert len(histograms["."]["weights"]) == count
    if count:
        assert scalars[-1].step == images["."]["grey/one"][-1].step == 20


@pytest.mark.parametrize("verb", ["read_scalars", "read_tensors", "read_blob_sequences"])
def test_a_number_of_points_must_be_asked_for(ask, verb):
    plugin = {"read_scalars": "scalars", "read_tensors": "text"}.get(verb, "images")
    for limit in (None, 2.5, "7"):
        for tags in (None, ["no such tag"]):
            with pytest.raises(TypeError, match="downsample"):
                ask(verb, plugin, tags=tags, downsample=limit)
    with pytest.raises(ValueError, match="cannot sample a series down to -1"):
        ask(verb, plugin, downsample=-1)


def test_a_value_that_is_no_scalar_is_an_error_for_its_readers_alone(tmp_path, index):
    with EventWriter(tmp_path / "logs") as writer:
        writer.scalar("loss", 1.0, 0)
        writer.add([encode.tensor("pair", [1.0, 2.0], plugin="scalars", data_class="scalar")], 0)
    provider = BoardDataProvider(one_board(index, tmp_path / "logs"))
    query = {"experiment_id": "board", "plugin_name": "scalars"}
    assert names(provider.list_scalars(**query)) == {(".", "loss"), (".", "pair")}
    with pytest.raises(ValueError, match=r"'pair' of run '\.' has values that are not scalars"):
        provider.read_scalars(**query, downsample=10)
    loss = provider.read_scalars(**query, downsample=10, run_tag_filter=RunTagFilter(tags=["loss"]))
    assert names(loss) == names(provider.read_last_scalars(**query)) == {(".", "loss")}


def test_ten_images_of_many_are_shown_as_in_tensorboard(tmp_path, serve):
    with EventWriter(tmp_path / "logs") as writer:
        for step in range(35):
            writer.add([summaries.images("image", [np.full((2, 2), step, np.uint8)])], step)
    shown = serve(tmp_path / "logs").get("data/plugin/images/images", run=".", tag="image").json
    assert len(shown) == 10
    assert (shown[0]["step"], shown[-1]["step"]) == (0, 34)


def test_the_values_of_one_step_are_found_by_it(tmp_path, index):
    for steps in ((0, 1, 2, 3), (2, 5, 5)):  # which was started again at 2
        with EventWriter(tmp_path / "logs") as writer:
            for step in steps:
                writer.add([encode.text("note", f"step {step}")], step)
    runs = one_board(index, tmp_path / "logs").get("board").runs()
    tag = runs["."].tags["note"]
    every = index.pointers(tag)
    assert [one.step for one in every] == [0, 1, 2, 5]
    for step in range(7):
        assert index.pointers(tag, step=step) == [one for one in every if one.step == step]


# What cannot be stored as it is.


def test_the_last_value_may_be_no_number(tmp_path, index):
    with EventWriter(tmp_path / "logs") as writer:
        writer.scalar("loss", 1.0, 0)
        writer.scalar("loss", math.nan, 1)
    provider = BoardDataProvider(one_board(index, tmp_path / "logs"))
    last = provider.read_last_scalars(experiment_id="board", plugin_name="scalars")["."]["loss"]
    assert last.step == 1
    assert math.isnan(last.value)


def test_an_event_may_have_no_time(tmp_path, serve):
    with EventWriter(tmp_path / "logs") as writer:
        writer.scalar("loss", 1.0, 0, wall_time=math.nan)
        writer.add([encode.text("note", "text")], 0, wall_time=math.nan)
        writer.scalar("other", 2.0, 0, wall_time=5.0)
    ours = serve(tmp_path / "logs")
    assert ours.points("loss") == [(0, 1.0)]
    assert ours.points("other") == [(0, 2.0)]
    query = {"run": ".", "tag": "loss"}
    assert ours.get("data/plugin/scalars/scalars", **query).json == [["NaN", 0, 1.0]]
    assert ours.get("data/plugin/text/text", run=".", tag="note").json[0]["wall_time"] == "NaN"


def test_one_odd_value_hides_no_other(tmp_path, serve, caplog):
    odd = [
        b"\x08\x14",  # a type that has no values
        b"\x08\x13" + encode.delimited(13, encode.varint(1 << 20)),  # no half is so large
        encode.tensor_proto(1 << 30, "int64"),
        encode.tensor_proto([b"\xff half a letter"]),
    ]
    with EventWriter(tmp_path / "logs") as writer:
        writer.add([encode.text("note", "good")], 0)
        writer.add([summaries.images("picture", [np.zeros((2, 2))])], 0)
        for step, proto in enumerate(odd, 1):
            for tag in ("note", "picture"):
                fields = encode.delimited(1, tag.encode()) + encode.delimited(8, proto)
                writer.add([encode.EncodedValue(tag, fields)], step)
    ours = serve(tmp_path / "logs")
    notes = ours.get("data/plugin/text/text", run=".", tag="note").json
    assert [note["step"] for note in notes] == [0, 4]
    assert "good" in notes[0]["text"]
    assert "\ufffd half a letter" in notes[1]["text"]
    pictures = ours.get("data/plugin/images/images", run=".", tag="picture", sample=0).json
    assert [picture["step"] for picture in pictures] == [0]
    assert "a value of 'note' is left out: at step 3 it is int64, not text" in caplog.text


# Keys.


def test_a_blob_is_read_in_a_request_to_its_board(provider, request_to):
    key = SIGNER.sign(BlobKey("board", ".", "pictures", 5, 2))
    request_to("empty")
    with pytest.raises(errors.NotFoundError, match="blob not found on this board"):
        provider.read_blob(blob_key=key)
    request_to("board")
    assert provider.read_blob(blob_key=key).startswith(b"\x89PNG")


def test_a_thread_of_a_plugin_reads_a_blob(provider, request_to):
    request_to("board")
    key = SIGNER.sign(BlobKey("board", ".", "pictures", 5, 2))
    with ThreadPoolExecutor(1) as threads:  # which has no context of a request
        blob = threads.submit(provider.read_blob, blob_key=key).result()
    assert blob.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "change", [{"run": "no"}, {"tag": "no"}, {"step": 999}, {"place": 99}, {"tag": "loss"}]
)
def test_a_blob_that_is_not_there(provider, request_to, change):
    key = BlobKey("board", ".", "pictures", 5, 2)._replace(**change)
    request_to("board")
    with pytest.raises(errors.NotFoundError, match="can no longer be read"):
        provider.read_blob(blob_key=SIGNER.sign(key))


def test_one_request_sees_one_state_of_the_board(provider, request_to, index, tmp_path):
    logs = tmp_path / "logs"
    EventWriter(logs / "first").close()
    provider = BoardDataProvider(one_board(index, logs))
    request_to("board")
    assert len(provider.list_runs(experiment_id="board")) == 1
    EventWriter(logs / "second").close()
    index.refresh(next(iter(provider._boards)).members[0].source)
    assert len(provider.list_runs(experiment_id="board")) == 1
    request_to("board")
    assert len(provider.list_runs(experiment_id="board")) == 2


# Margin charts.


def write_band(writer, steps, tags=("value", "lower", "upper")):
    random = np.random.default_rng(7)
    for step in steps:
        middle, *widths = random.normal(size=3).tolist()
        numbers = (middle, middle - abs(widths[0]), middle + abs(widths[1]))
        writer.scalars(dict(zip(tags, numbers, strict=True)), step, wall_time=float(step))


def margin_chart(*series):
    layout = layout_pb2.Layout()
    chart = layout.category.add(title="Bands").chart.add(title="band")
    for value, lower, upper in series:
        chart.margin.series.add(value=value, lower=lower, upper=upper)
    return encode.custom_scalars(layout.SerializeToString())


def drawn(ours, run="trained"):
    answer = ours.get("data/plugin/custom_scalars/scalars", run=run, tag="value|lower|upper").json
    return {tag: [point[1] for point in points] for tag, points in answer["tag_to_events"].items()}


def test_a_long_margin_chart_has_one_set_of_steps(tmp_path, serve):
    with EventWriter(tmp_path / "logs" / "layout") as writer:
        writer.add([margin_chart(("value", "lower", "upper"))], 0)
    with EventWriter(tmp_path / "logs" / "trained") as writer:
        write_band(writer, range(3000))
        for step in range(3000):
            writer.scalar("other", math.sin(step), step)
    ours = serve(tmp_path / "logs")
    shown = drawn(ours)
    assert len(shown["value"]) == 1000
    assert shown["value"] == shown["lower"] == shown["upper"]
    query = {"run": "trained", "format": "csv"}
    for tag in shown:
        rows = ours.get("data/plugin/custom_scalars/download_data", tag=tag, **query).text
        steps = [int(line.split(",")[1]) for line in rows.splitlines()[1:]]
        assert steps == shown["value"]
    other = ours.get("data/plugin/scalars/scalars", run="trained", tag="other").json
    assert [point[1] for point in other] != shown["value"]


def test_the_chart_of_a_growing_run_has_one_set_of_steps(tmp_path, serve):
    tags = [f"{kind}{number}" for number in range(2) for kind in ("value", "lower", "upper")]
    with EventWriter(tmp_path / "logs" / "trained") as writer:
        writer.add([margin_chart(tags[:3], (tags[0], *tags[4:]))], 0)
        write_band(writer, range(1500), tags[:3])
        write_band(writer, range(1500), tags[3:])
        writer.scalar(tags[0], 5.0, 1500)
        writer.flush()
        ours = serve(tmp_path / "logs")
        shown = drawn(ours)
    alone = shown.pop(tags[3])
    assert len(shown) == 5
    assert all(steps == shown[tags[0]] for steps in shown.values())
    assert alone != shown[tags[0]]


def test_a_layout_that_cannot_be_read_hides_no_curve(tmp_path, serve):
    with EventWriter(tmp_path / "logs" / "trained") as writer:
        writer.add([encode.custom_scalars(b"\xff no layout")], 0)
        write_band(writer, range(1200))
    assert {len(steps) for steps in drawn(serve(tmp_path / "logs")).values()} == {1000}


# Keys of blobs are signed: only the process that made a key accepts it.


KEY = BlobKey("board", "räum é/lauf #1", "images/a?b&c=d", 7, 2)
texts = st.text(st.characters(codec="utf-8"))


@given(texts, texts, texts, st.integers(-(2**63), 2**63 - 1), st.integers(0, 1000))
def test_what_is_signed_can_be_read_and_may_stand_in_a_url(board, run, tag, step, place):
    key = BlobKey(board, run, tag, step, place)
    text = SIGNER.sign(key)
    assert SIGNER.read(text) == key
    assert set(text) <= set(string.ascii_letters + string.digits + "-_")


def test_a_run_of_undecodable_bytes_has_a_key():
    key = KEY._replace(run="caf\udce9")
    assert SIGNER.read(SIGNER.sign(key)) == key


def test_every_change_is_noticed():
    text = SIGNER.sign(KEY)
    for place in range(len(text)):
        with pytest.raises(BadKey):
            SIGNER.read(text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :])
        with pytest.raises(BadKey):
            SIGNER.read(text[:place])


@pytest.mark.parametrize("added", ["=", "!", " ", "A", "é", "\n", "%00"])
def test_nothing_may_be_added(added):
    text = SIGNER.sign(KEY)
    for changed in (text + added, added + text, text[:5] + added + text[5:]):
        with pytest.raises(BadKey):
            SIGNER.read(changed)


@given(st.text())
def test_nothing_made_up_is_a_key(text):
    with pytest.raises(BadKey):
        SIGNER.read(text)


def test_keys_of_another_process_are_refused():
    with pytest.raises(BadKey):
        Signer().read(Signer().sign(KEY))
