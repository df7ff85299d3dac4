"""Records come back as the values that were encoded, and as TensorBoard itself reads them."""

import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from google import protobuf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from seeds import built_events

from aboard.events import encode, messages
from aboard.events.messages import (
    DecodeError,
    Value,
    decode,
    delimited,
    load_protos,
    migrated_metadata,
)
from tests import summaries

tensorboard = load_protos()

from tensorboard import version  # noqa: E402

TAGS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
ELEMENT_TYPES = (
    hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64))
    | hnp.integer_dtypes(endianness="<")
    | hnp.unsigned_integer_dtypes(endianness="<")
    | hnp.complex_number_dtypes(endianness="<", sizes=(64, 128))
    | hnp.boolean_dtypes()
)


def decode_one(value, metadata=None) -> Value:
    (decoded,) = decode(encode.event(1.5, 3, [value]), metadata)
    return decoded


def array_value(array, dtype=None, *, content) -> encode.EncodedValue:
    proto = encode.tensor_proto(array, dtype, content=content)
    return encode.EncodedValue("a", delimited(1, b"a") + delimited(8, proto))


@given(TAGS, st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1), st.floats(width=32))
def test_a_simple_scalar_becomes_a_tensor(tag, wall_time, step, number):
    (value,) = decode(encode.event(wall_time, step, [encode.scalar(tag, number)]))
    assert (value.tag, value.wall_time, value.step) == (tag, wall_time, step)
    assert (value.plugin, value.data_class) == ("scalars", "scalar")
    assert value.tensor.dtype == np.float32
    np.testing.assert_array_equal(value.tensor, np.float32(number))


@given(hnp.arrays(ELEMENT_TYPES, hnp.array_shapes(min_dims=0, min_side=0)), st.booleans())
def test_any_array_of_numbers_comes_back(array, content):
    described = encode.metadata("mine", data_class="tensor")
    value = decode_one(array_value(array, content=content)._replace(metadata=described))
    assert (value.plugin, value.data_class) == ("mine", "tensor")
    assert value.tensor.dtype == array.dtype
    assert value.tensor.shape == array.shape
    np.testing.assert_array_equal(value.tensor, array)


@given(hnp.arrays(object, hnp.array_shapes(min_dims=0, min_side=0), elements=st.binary()))
def test_any_array_of_bytes_comes_back(array):
    value = decode_one(encode.tensor("a", array))
    assert value.tensor.shape == array.shape
    assert value.tensor.ravel().tolist() == array.ravel().tolist()


@pytest.mark.parametrize("content", [True, False])
def test_types_that_stock_tensorboard_cannot_read(content):
    numbers = [1.0, -0.5, 3e38]
    value = decode_one(array_value(numbers, "bfloat16", content=content))
    assert value.tensor.dtype == np.float32
    np.testing.assert_allclose(value.tensor, numbers, rtol=2**-8)
    for dtype in ("uint32", "uint64"):
        value = decode_one(array_value([1, 2**32 - 1], dtype, content=content))
        assert (value.tensor.dtype.name, value.tensor.tolist()) == (dtype, [1, 2**32 - 1])
        value = decode_one(encode.scalar_tensor("a", 7, dtype, content=content))
        assert (value.tensor.shape, value.tensor.item()) == ((), 7)


@pytest.mark.parametrize(
    ("value", "plugin", "data_class", "tensor"),
    [
        (encode.scalar_tensor("t", 0.1, "float64"), "scalars", "scalar", 0.1),
        (encode.text("t", ["a", "b"]), "text", "tensor", [b"a", b"b"]),
        (encode.histogram("t", [[0, 1, 2]]), "histograms", "tensor", [[0, 1, 2]]),
        (encode.pr_curve("t", np.ones((6, 1))), "pr_curves", "tensor", [[1]] * 6),
        (encode.mesh("t", [[[1, 2, 3]]])[0], "mesh", "tensor", [[[1, 2, 3]]]),
        (encode.hparams_start({"a": 1}), "hparams", "tensor", []),
        (encode.custom_scalars(b"x"), "custom_scalars", "tensor", b"x"),
        (encode.images("t", [b"x"], 2, 3), "images", "blob_sequence", [b"2", b"3", b"x"]),
        (encode.audio("t", [b"x", b"y"]), "audio", "blob_sequence", [b"x", b"y"]),
        (encode.keras_graph("{}"), "graph_keras_model", "blob_sequence", [b"{}"]),
        (summaries.trace("t", b"x"), "graph_run_metadata_graph", "blob_sequence", [b"x"]),
        (encode.legacy_image("t", b"x", 2, 3), "images", "blob_sequence", [b"2", b"3", b"x"]),
        (encode.legacy_audio("t", b"x", 8.0, 1, 2), "audio", "blob_sequence", [b"x"]),
        (
            encode.legacy_histogram("t", (1, 3, 2, 4, 10), [0, 2, 4, 9], [0, 1, 1, 0]),
            "histograms",
            "tensor",
            [[1, 2, 1], [2, 3, 1]],
        ),
        (encode.tensor("t", [1], data_class=""), "", "", [1]),
    ],
)
def test_every_kind_has_its_plugin_and_class_also_after_the_first_value(
    value, plugin, data_class, tensor
):
    first = decode_one(value)
    assert (first.step, first.wall_time) == (3, 1.5)
    assert (first.plugin, first.data_class) == (plugin, data_class)
    assert first.tensor.tolist() == tensor
    for known in (value.metadata, first.metadata):
        for later in (value, value.bare()):
            assert decode_one(later, {value.tag: known}) == first
    if data_class == "blob_sequence":
        assert first.blobs == tensor


def test_the_first_metadata_of_a_tag_counts():
    described = {"t": summaries.metadata("images", display_name="first")}
    value = decode_one(encode.text("t", "x"), described)
    assert (value.plugin, value.data_class) == ("images", "blob_sequence")
    parsed = tensorboard.summary_pb2.SummaryMetadata.FromString(value.metadata)
    assert parsed.display_name == "first"


def test_a_class_of_data_that_was_written_is_kept():
    described = encode.metadata("scalars", data_class="tensor")
    value = encode.scalar_tensor("t", 1.0)._replace(metadata=described)
    for known in ({}, {"t": described}):
        assert decode_one(value, known).data_class == "tensor"


def test_a_graph_becomes_a_blob_sequence():
    (value,) = decode(encode.graph(1.0, b"graph", 4))
    assert (value.tag, value.plugin, value.data_class) == (
        "__run_graph__",
        "graphs",
        "blob_sequence",
    )
    assert (value.step, value.wall_time, value.blobs) == (4, 1.0, [b"graph"])


def test_run_metadata_becomes_a_blob_sequence():
    (value,) = decode(encode.tagged_run_metadata(1.0, 4, "step4", b"run"))
    assert (value.tag, value.plugin) == ("step4", "graph_tagged_run_metadata")
    assert (value.data_class, value.blobs) == ("blob_sequence", [b"run"])


def test_events_without_values_give_none():
    assert decode(encode.file_version(1.0)) == []
    assert decode(encode.event(1.0, 2, [])) == []
    assert decode(b"") == []
    only_a_tag = encode.EncodedValue("t", encode.delimited(1, b"t"))
    assert decode(encode.event(1.0, 2, [only_a_tag])) == []


def test_a_value_without_tag_goes_by_its_node():
    fields = encode.delimited(7, b"node") + encode.delimited(8, encode.tensor_proto(1.0))
    assert decode_one(encode.EncodedValue("", fields)).tag == "node"


def test_metadata_is_migrated_by_plugin():
    parse = tensorboard.summary_pb2.SummaryMetadata.FromString
    assert parse(migrated_metadata(encode.metadata("images", b"c"))).data_class == 3
    assert parse(migrated_metadata(encode.metadata("images", b"c"))).plugin_data.content == b"c"
    assert parse(migrated_metadata(encode.metadata("mine"))).data_class == 0


@pytest.mark.parametrize("data", [b"\xff", b"\x2a\x05\x01", encode.graph(1.0, b"graph")[:-1]])
def test_bytes_that_are_no_event_are_an_error(data):
    with pytest.raises(DecodeError, match="not an event: "):
        decode(data)


def test_metadata_that_is_damaged_is_an_error():
    with pytest.raises(DecodeError, match="not an event: "):
        decode(encode.event(1.0, 2, [encode.text("t", "x")]), {"t": b"\xff"})


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (b"\x08\x01" + encode.delimited(2, b"\x12\x02\x08\x03") + b"\x22\x04abcd", "reshape"),
        (b"\x08\x01" + encode.delimited(2, b"\x12\x02\x08\x03") + b"\x22\x03abc", "buffer size"),
        (b"\x08\x63", "99"),
        (
            b"\x08\x01\x12\x08\x12\x06\x08\x80\x80\x80\x80\x08\x2a\x04abcd",
            r"its shape is \[2147483648\]",
        ),
        (b"\x08\x01" + encode.delimited(2, b"\x12\x0b\x08" + encode.varint(-1)), "its shape is"),
        (b"\x08\x14", "20|object"),
        (b"\x08\x15", "21|object"),
        (b"\x08\x13" + encode.delimited(13, encode.varint(1 << 20)), "out of bounds|too large"),
    ],
)
def test_a_tensor_that_is_not_what_it_says_is_an_error(proto, reason):
    value = decode_one(
        encode.EncodedValue("t", encode.delimited(1, b"t\n") + encode.delimited(8, proto))
    )
    with pytest.raises(
        DecodeError, match=rf"cannot read the tensor of 't\\n' at step 3: .*{reason}"
    ):
        _ = value.tensor


def test_blobs_are_of_text_and_nothing_else():
    number = encode.tensor("i", np.int64(1), plugin="images", data_class="blob_sequence")
    with pytest.raises(DecodeError, match="cannot read the blobs of 'i' at step 3: its type 9 is"):
        _ = decode_one(number).blobs
    assert decode_one(encode.images("i", [b"a\0", b""], 1, 2)).blobs == [b"1", b"2", b"a\0", b""]


SEEDS = [*built_events()]


@settings(max_examples=100)
@given(st.sampled_from(SEEDS), st.data())
def test_no_damage_to_any_kind_of_event_raises_anything_else(seed, data):
    record = bytearray(seed)
    places = st.integers(0, len(record) - 1)
    for position in data.draw(st.lists(places, min_size=1, max_size=4)):
        record[position] = data.draw(st.integers(0, 255))
    with suppress(DecodeError):
        for value in decode(bytes(record)):
            for read in (lambda one: one.tensor, lambda one: one.blobs):
                with suppress(DecodeError):
                    read(value)


def test_an_old_histogram_without_limits_is_an_error_or_a_value():
    histo = encode.delimited(7, np.ones(3).tobytes())
    value = encode.EncodedValue("t", encode.delimited(1, b"t") + encode.delimited(5, histo))
    with pytest.raises(DecodeError, match="cannot migrate an event: "):
        decode(encode.event(1.0, 2, [value]))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(noise):
    try:
        values = decode(noise, {"": noise})
        for value in values:
            _ = value.tensor
    except DecodeError:
        pass


@given(st.data())
def test_no_damage_raises_anything_else(data):
    values = [
        encode.images("i", [b"x"], 1, 1),
        encode.legacy_histogram("h", (1, 1, 1, 1, 1), [2], [1]),
    ]
    values += [encode.tensor("s", [1.0, 2.0]), encode.audio("a", [b"x", b"y"])]
    record = bytearray(encode.event(1.0, 2, values))
    for position in data.draw(st.lists(st.integers(0, len(record) - 1), min_size=1, max_size=3)):
        record[position] = data.draw(st.integers(0, 255))
    try:
        for value in decode(bytes(record)):
            _ = value.tensor
    except DecodeError:
        pass


def test_importing_costs_no_tensorboard_and_decoding_no_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise AssertionError('TensorFlow was imported')")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from aboard.events import messages\n"
        "assert not {'tensorboard', 'numpy', 'dataclasses'} & sys.modules.keys()\n"
        "from aboard.events import encode\n"
        "messages.decode(encode.event(1.0, 2, [encode.scalar('a', 1.0)]))\n"
        "assert 'tensorboard' in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True)


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
        messages._check_versions.__wrapped__()
    fits = "pip install 'tensorboard>=2.17', or 'numpy<2' 'protobuf<5'"
    assert str(caught.value) == f"TensorBoard 2.16.2 does not work with {package}: {fits}"


@pytest.mark.parametrize("tensorboard", ["2.16.2", "2.17.0", "2.21.0", "3.0"])
def test_other_pairs_are_fine(monkeypatch, tensorboard):
    monkeypatch.setattr(version, "VERSION", tensorboard)
    if tensorboard == "2.16.2":
        monkeypatch.setattr("numpy.__version__", "1.26.4")
        monkeypatch.setattr(protobuf, "__version__", "4.25.9")
    messages._check_versions.__wrapped__()


def test_a_value_is_shown_without_its_content():
    (value,) = decode(encode.event(0.0, 7, [encode.text("notes", "long " * 1000)]))
    assert repr(value).startswith("Value(tag='notes', step=7, ")
    assert len(repr(value)) < 300
