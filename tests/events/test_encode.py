"""What `encode` writes, TensorBoard's own protobufs and plugins read back."""

import io
import json
import math
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from aboard.events import encode
from aboard.events.messages import load_protos, parse_hparams
from tests import summaries

tensorboard = load_protos()

from tensorboard.compat.proto import event_pb2, tensor_pb2  # noqa: E402
from tensorboard.plugins.audio import metadata as audio_metadata  # noqa: E402
from tensorboard.plugins.hparams import metadata as hparams_metadata  # noqa: E402
from tensorboard.plugins.mesh import metadata as mesh_metadata  # noqa: E402
from tensorboard.plugins.pr_curve import metadata as pr_curve_metadata  # noqa: E402
from tensorboard.util import tensor_util  # noqa: E402

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
INT64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS = (
    hnp.floating_dtypes(sizes=(16, 32, 64), endianness="=")
    | hnp.floating_dtypes(sizes=(32, 64), endianness=">")
    | hnp.integer_dtypes()
    | hnp.unsigned_integer_dtypes(sizes=(8, 16))
    | hnp.complex_number_dtypes(sizes=(64, 128))
    | hnp.boolean_dtypes()
)


def parse(value):
    """Parse the only value of an event as protobuf sees it."""
    (parsed,) = event_pb2.Event.FromString(encode.event(1.0, 2, [value])).summary.value
    return parsed


def read_back(proto):
    return tensor_util.make_ndarray(tensor_pb2.TensorProto.FromString(proto))


@given(INT64 | st.integers(0, 2**64 - 1))
def test_varints_are_those_of_protobuf(number):
    from google.protobuf.internal import encoder

    expected = bytearray()
    encode_varint = encoder._EncodeSignedVarint if number < 0 else encoder._EncodeVarint
    encode_varint(expected.extend, number)
    assert encode.varint(number) == bytes(expected)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_a_varint_beyond_64_bits_is_an_error(number):
    with pytest.raises(ValueError, match=f"{number} does not fit in 64 bits"):
        encode.varint(number)


@given(st.floats(), INT64, st.dictionaries(TEXT, st.floats(width=32)))
def test_an_event_holds_its_scalars(wall_time, step, numbers):
    values = [encode.scalar(tag, number) for tag, number in numbers.items()]
    event = event_pb2.Event.FromString(encode.event(wall_time, step, values))
    assert struct.pack("d", event.wall_time) == struct.pack("d", wall_time)
    assert event.step == step
    assert [value.tag for value in event.summary.value] == list(numbers)
    read = [value.simple_value for value in event.summary.value]
    np.testing.assert_array_equal(read, list(numbers.values()))


def test_a_step_is_an_integer_of_any_kind():
    assert event_pb2.Event.FromString(encode.event(1.0, np.int32(-7), [])).step == -7
    with pytest.raises(TypeError, match=r"step must be an integer, not float: 1\.5"):
        encode.event(1.0, 1.5, [])
    with pytest.raises(ValueError, match="the step -9223372036854775809 does not fit in 64 bits"):
        encode.event(1.0, -(2**63) - 1, [])


def test_a_session_starts_at_a_step():
    event = event_pb2.Event.FromString(encode.session_start(3.0, 40))
    assert (event.wall_time, event.step) == (3.0, 40)
    assert event.session_log.status == event.session_log.START


def test_a_scalar_beyond_float32_is_infinite():
    assert parse(encode.scalar("loss", 1e300)).simple_value == math.inf
    assert parse(encode.scalar("loss", -1e300)).simple_value == -math.inf


@given(hnp.arrays(NUMBERS, hnp.array_shapes(min_dims=0, min_side=0)), st.none() | st.booleans())
def test_arrays_of_numbers_come_back_the_same(array, content):
    read = read_back(encode.tensor_proto(array, content=content))
    assert read.shape == array.shape
    assert read.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(read, array)


@given(hnp.arrays(st.sampled_from(["<u4", "<u8"]), hnp.array_shapes(min_dims=0)))
def test_wide_unsigned_integers_come_back_as_raw_content(array):
    np.testing.assert_array_equal(read_back(encode.tensor_proto(array)), array)
    typed = tensor_pb2.TensorProto.FromString(encode.tensor_proto(array, content=False))
    assert [*typed.uint32_val, *typed.uint64_val] == array.ravel().tolist()


@given(hnp.arrays(object, hnp.array_shapes(min_dims=0, min_side=0), elements=st.binary() | TEXT))
def test_arrays_of_text_and_bytes_come_back_as_bytes(array):
    read = read_back(encode.tensor_proto(array))
    expected = [each.encode() if isinstance(each, str) else each for each in array.ravel()]
    assert read.shape == array.shape
    assert read.ravel().tolist() == expected


def test_trailing_zeros_of_bytes_survive():
    assert read_back(encode.tensor_proto([b"a\0", b"\0"])).tolist() == [b"a\0", b"\0"]
    assert read_back(encode.tensor_proto(b"a\0")).item() == b"a\0"


@given(hnp.arrays("<f4", 5, elements=st.floats(width=32)))
def test_bfloat16_keeps_the_nearest_number(array):
    proto = tensor_pb2.TensorProto.FromString(encode.tensor_proto(array, "bfloat16"))
    assert proto.dtype == 14
    bits = np.frombuffer(proto.tensor_content, "<u2").astype("<u4") << 16
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(bits.view("<f4").astype(float) - array)
        allowed = np.maximum(np.abs(array.astype(float)) * 2.0**-8, 2.0**-133)
    exact = ~np.isfinite(array) | ~np.isfinite(bits.view("<f4"))
    assert (error <= allowed)[~exact].all()
    assert (np.isnan(bits.view("<f4")) == np.isnan(array)).all()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["2026-01-01"], "M8[s]"), "cannot write elements of type datetime64"),
        ([None], "cannot write a NoneType to an event file: None"),
        (2**70, "cannot write a int to an event file: 1180591620717411303424"),
    ],
)
def test_what_is_neither_number_nor_text_is_an_error(array, message):
    with pytest.raises(TypeError, match=message):
        encode.tensor_proto(array)


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"],
)
@pytest.mark.parametrize("content", [None, True, False])
def test_a_scalar_tensor_has_the_type_asked_for(dtype, content):
    value = parse(encode.scalar_tensor("loss", 1, dtype, content=content))
    array = tensor_util.make_ndarray(value.tensor)
    assert (array.dtype.name, array.shape, array.item()) == (dtype, (), 1)
    assert value.metadata.plugin_data.plugin_name == "scalars"


def test_metadata_is_optional():
    described = encode.metadata("mine", b"content", data_class="scalar", description="of *train*")
    value = encode.scalar_tensor("loss", 1.0)._replace(metadata=described)
    found = parse(value).metadata
    assert found.plugin_data.plugin_name == "mine"
    assert found.plugin_data.content == b"content"
    assert found.summary_description == "of *train*"
    assert found.data_class == 1
    assert not parse(value.bare()).HasField("metadata")


def test_the_file_version_names_its_writer():
    event = event_pb2.Event.FromString(encode.file_version(3.0))
    assert (event.wall_time, event.file_version) == (3.0, "brain.Event:2")
    assert event.source_metadata.writer == "aboard.events.writer"
    assert not event_pb2.Event.FromString(encode.file_version(3.0, "")).HasField("source_metadata")


def test_graphs_and_run_metadata_are_events_of_their_own():
    event = event_pb2.Event.FromString(encode.graph(3.0, b"graph", 4))
    assert (event.graph_def, event.step) == (b"graph", 4)
    event = event_pb2.Event.FromString(encode.tagged_run_metadata(3.0, 4, "step4", b"run"))
    assert event.tagged_run_metadata.tag == "step4"
    assert event.tagged_run_metadata.run_metadata == b"run"


@given(
    hnp.arrays(
        float, st.integers(0, 50), elements=st.floats(allow_nan=False, allow_infinity=False)
    ),
    st.integers(1, 40),
)
def test_histogram_buckets_hold_every_finite_number(numbers, count):
    buckets = encode.histogram_buckets(np.append(numbers, [np.nan, np.inf, -np.inf]), count)
    assert buckets.shape == (count if numbers.size else 0, 3)
    assert buckets[:, 2].sum() == numbers.size
    if numbers.size:
        assert (buckets[0, 0], buckets[-1, 1]) == (numbers.min(), numbers.max())
        assert (np.diff(buckets[:, 0]) >= 0).all()


def test_a_histogram_is_a_double_tensor_of_three_columns():
    value = parse(encode.histogram("weights", encode.histogram_buckets([1, 2, 2, 3], 2)))
    assert value.metadata.plugin_data.plugin_name == "histograms"
    array = tensor_util.make_ndarray(value.tensor)
    assert array.dtype == np.float64
    assert array.tolist() == [[1, 2, 1], [2, 3, 3]]
    with pytest.raises(ValueError, match=r"three columns, not the shape \(2,\)"):
        encode.histogram("weights", [1, 2])


def test_images_come_with_their_size_first():
    value = parse(encode.images("samples", [b"one", b"two"], 4, 3))
    assert value.metadata.plugin_data.plugin_name == "images"
    assert tensor_util.make_ndarray(value.tensor).tolist() == [b"4", b"3", b"one", b"two"]


def test_audio_clips_come_with_labels():
    value = parse(encode.audio("speech", [b"one", b"two"], ["first", "second"]))
    assert tensor_util.make_ndarray(value.tensor).tolist() == [
        [b"one", b"first"],
        [b"two", b"second"],
    ]
    value = parse(encode.audio("speech", [b"one"]))
    assert tensor_util.make_ndarray(value.tensor).tolist() == [[b"one", b""]]
    content = audio_metadata.parse_plugin_metadata(value.metadata.plugin_data.content)
    assert content.encoding == audio_metadata.Encoding.Value("WAV")
    assert tensor_util.make_ndarray(parse(encode.audio("none", [])).tensor).shape == (0, 2)


def test_a_pr_curve_counts_its_thresholds():
    curve = np.arange(18).reshape(6, 3)
    value = parse(encode.pr_curve("classes", curve))
    content = pr_curve_metadata.parse_plugin_metadata(value.metadata.plugin_data.content)
    assert content.num_thresholds == 3
    np.testing.assert_array_equal(tensor_util.make_ndarray(value.tensor), curve)
    with pytest.raises(ValueError, match=r"six rows, not the shape \(3, 6\)"):
        encode.pr_curve("classes", curve.T.reshape(3, 6))


def test_a_mesh_is_one_value_per_part():
    vertices = np.random.default_rng(0).random((1, 200, 3))
    colors = np.full((1, 200, 3), 7)
    parts = [parse(part) for part in encode.mesh("bunny", vertices, colors=colors, config={"a": 1})]
    assert [part.tag for part in parts] == ["bunny_VERTEX", "bunny_COLOR"]
    contents = [
        mesh_metadata.parse_plugin_metadata(part.metadata.plugin_data.content) for part in parts
    ]
    assert [content.content_type for content in contents] == [1, 3]
    assert {content.components for content in contents} == {0b1010}
    assert {tuple(content.shape) for content in contents} == {(1, 200, 3)}
    assert {content.name for content in contents} == {"bunny"}
    assert json.loads(contents[0].json_config) == {"a": 1}
    assert tensor_util.make_ndarray(parts[0].tensor).dtype == np.float32
    assert tensor_util.make_ndarray(parts[1].tensor).dtype == np.uint8
    with pytest.raises(ValueError, match=r"the shape \[batch, n, 3\], not \(200, 3\)"):
        encode.mesh("bunny", vertices[0])


@pytest.mark.parametrize(("value", "text"), [("caf\udce9", "caf\\udce9"), (10**400, str(10**400))])
def test_hparams_that_protobuf_cannot_hold_become_texts(value, text):
    found = parse(encode.hparams_start({"data": value, "na\udce9me": 1}))
    info = hparams_metadata.parse_session_start_info_plugin_data(found.metadata.plugin_data.content)
    assert info.hparams["data"].string_value == text
    assert info.hparams["na\\udce9me"].number_value == 1


def test_hparams_of_a_session_keep_their_types():
    hparams = {"lr": 0.1, "layers": 0, "name": "", "bias": False}
    value = parse(encode.hparams_start(hparams, group="g", start_time=5.0))
    assert value.tag == hparams_metadata.SESSION_START_INFO_TAG
    info = hparams_metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    kinds = {name: each.WhichOneof("kind") for name, each in info.hparams.items()}
    assert kinds == {
        "lr": "number_value",
        "layers": "number_value",
        "name": "string_value",
        "bias": "bool_value",
    }
    assert info.hparams["lr"].number_value == 0.1
    read = parse_hparams(value.metadata.plugin_data.content)
    assert read == hparams
    assert (info.group_name, info.start_time_secs) == ("g", 5.0)
    assert value.tensor == hparams_metadata.NULL_TENSOR


@pytest.mark.parametrize(
    ("status", "number"), [("unknown", 0), ("success", 1), ("failure", 2), ("running", 3)]
)
def test_a_session_ends_with_a_status(status, number):
    value = parse(encode.hparams_end(status))
    assert value.tag == hparams_metadata.SESSION_END_INFO_TAG
    info = hparams_metadata.parse_session_end_info_plugin_data(value.metadata.plugin_data.content)
    assert info.status == number


def test_an_experiment_lists_hparams_and_metrics():
    value = parse(
        encode.hparams_experiment(
            [
                encode.hparam_info("lr", kind=float),
                encode.hparam_info("optimizer", domain=["sgd", "adam"]),
                encode.hparam_info("bias", domain=[True, False]),
                encode.hparam_info("layers", domain=[1, 2]),
                encode.hparam_info("seed"),
            ],
            [encode.metric_info("loss")],
        )
    )
    assert value.tag == hparams_metadata.EXPERIMENT_TAG
    experiment = hparams_metadata.parse_experiment_plugin_data(value.metadata.plugin_data.content)
    assert [info.name for info in experiment.hparam_infos] == [
        "lr",
        "optimizer",
        "bias",
        "layers",
        "seed",
    ]
    assert [info.type for info in experiment.hparam_infos] == [3, 1, 2, 3, 0]
    assert list(experiment.hparam_infos[1].domain_discrete) == ["sgd", "adam"]
    assert list(experiment.hparam_infos[2].domain_discrete) == [True, False]
    (metric,) = experiment.metric_infos
    assert (metric.name.group, metric.name.tag) == ("", "loss")


@pytest.mark.parametrize(
    ("value", "tag", "plugin"),
    [
        (encode.custom_scalars(b"x"), "custom_scalars__config__", "custom_scalars"),
        (encode.keras_graph("x"), "keras", "graph_keras_model"),
        (summaries.trace("t", b"x"), "t", "graph_run_metadata_graph"),
        (encode.text("t", "x"), "t", "text"),
    ],
)
def test_single_strings_belong_to_their_plugin(value, tag, plugin):
    parsed = parse(value)
    assert (parsed.tag, parsed.metadata.plugin_data.plugin_name) == (tag, plugin)
    assert tensor_util.make_ndarray(parsed.tensor).item() == b"x"


def test_the_old_forms_fill_their_messages():
    image = parse(encode.legacy_image("a", b"png", 4, 3, 1)).image
    assert (image.width, image.height, image.colorspace) == (4, 3, 1)
    assert image.encoded_image_string == b"png"
    audio = parse(encode.legacy_audio("a", b"wav", 8000.0, 2, 30)).audio
    assert (audio.sample_rate, audio.num_channels, audio.length_frames) == (8000.0, 2, 30)
    assert (audio.encoded_audio_string, audio.content_type) == (b"wav", "audio/wav")
    histo = parse(encode.legacy_histogram("a", (1, 4, 3, 7, 21), [2.0, 4.0], [2, 1])).histo
    assert (histo.min, histo.max, histo.num, histo.sum, histo.sum_squares) == (1, 4, 3, 7, 21)
    assert (list(histo.bucket_limit), list(histo.bucket)) == ([2.0, 4.0], [2.0, 1.0])


@given(
    hnp.arrays(
        np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 3, 4]))
    )
)
def test_a_png_has_the_pixels_it_was_made_of(pixels):
    with Image.open(io.BytesIO(encode.png(pixels))) as image:
        np.testing.assert_array_equal(np.asarray(image).reshape(pixels.shape), pixels)


def test_pixels_are_clipped_to_their_range():
    with Image.open(io.BytesIO(encode.png([[-1.0, 0.5], [np.nan, np.inf]]))) as image:
        assert np.asarray(image).tolist() == [[0, 128], [0, 255]]
    with Image.open(io.BytesIO(encode.png([[-1, 300]]))) as image:
        assert np.asarray(image).tolist() == [[0, 255]]
    with Image.open(io.BytesIO(encode.png([[True, False]]))) as image:
        assert np.asarray(image).tolist() == [[255, 0]]


@pytest.mark.parametrize("shape", [(3,), (2, 2, 5), (0, 2), (2, 2, 2, 3)])
def test_an_image_of_another_shape_is_an_error(shape):
    with pytest.raises(ValueError, match=r"an image must have the shape .* not \("):
        encode.png(np.zeros(shape))


@given(hnp.arrays(np.int16, st.tuples(st.integers(0, 20), st.integers(1, 3))))
def test_a_wav_has_the_samples_it_was_made_of(samples):
    with wave.open(io.BytesIO(encode.wav(samples, 8000))) as clip:
        assert (clip.getframerate(), clip.getnchannels()) == (8000, samples.shape[1])
        read = np.frombuffer(clip.readframes(100), "<i2").reshape(samples.shape)
        np.testing.assert_array_equal(read, samples)


def test_float_samples_are_clipped_and_other_audio_is_an_error():
    with wave.open(io.BytesIO(encode.wav([-2.0, 0.0, np.nan, 1.0], 8000))) as clip:
        assert np.frombuffer(clip.readframes(9), "<i2").tolist() == [-32767, 0, 0, 32767]
    with pytest.raises(TypeError, match="floats or int16, not int64"):
        encode.wav(np.zeros(3, np.int64), 8000)
    with pytest.raises(ValueError, match=r"\[frames, channels\], not \(1, 1, 1\)"):
        encode.wav(np.zeros((1, 1, 1)), 8000)
