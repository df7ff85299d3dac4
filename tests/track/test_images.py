"""Images in every layout come out upright and in the right shade; the same as PyTorch's."""

import io
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from aboard.events import encode, protos
from aboard.track import images

protos.keep_tensorflow_out()

from torch.utils.tensorboard import _utils, summary  # noqa: E402

LAYOUTS = ["".join(axes) for kind in ("HW", "HWC", "NHWC") for axes in itertools.permutations(kind)]
PIXELS = st.sampled_from(["u1", "f4", "f8", "?", "i8", "f2"])


@st.composite
def layouts_and_pixels(draw, channels=(1, 3)):
    layout = draw(st.sampled_from(LAYOUTS))
    sizes = {"N": st.integers(1, 19), "H": st.integers(1, 5), "W": st.integers(1, 5)}
    sizes["C"] = st.sampled_from(channels)
    shape = tuple(draw(sizes[axis]) for axis in layout)
    kind = draw(PIXELS)
    elements = st.floats(-0.5, 1.5, width=16) if kind[0] == "f" else None
    return layout, draw(hnp.arrays(kind, shape, elements=elements))


@given(layouts_and_pixels())
def test_every_layout_looks_as_with_pytorch(image):
    layout, pixels = image
    levels = _utils.convert_to_HWC(pixels, layout)
    expected = levels.astype(np.float32) * summary._calc_scale_factor(levels)
    expected = expected.clip(0, 255).astype(np.uint8)
    for given_pixels in (pixels, torch.from_numpy(pixels.copy())):
        found = images.torch_image(given_pixels, layout)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(images.torch_image(pixels, layout.lower()), expected)


@given(layouts_and_pixels(channels=(1, 2, 3, 4)))
def test_every_layout_is_transposed_to_one(image):
    layout, pixels = image
    upright = images.arranged(pixels, layout, "NHWC" if "N" in layout else "HWC")
    for place in np.ndindex(*pixels.shape):
        at = dict(zip(layout, place, strict=True))
        axes = [at.get(axis, 0) for axis in ("NHWC" if "N" in layout else "HWC")]
        assert upright[tuple(axes)] == pixels[place]


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((5, 7), "HW"),
        ((5, 7, 3), "HWC"),
        ((3, 5, 7), "CHW"),
        ((1, 5, 7), "CHW"),
        ((5, 7, 4), "HWC"),
    ],
)
def test_layouts_that_can_be_guessed(shape, layout):
    assert images.guess_layout(shape) == layout
    assert images.guess_batch_layout((9, *shape)) == "N" + layout


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (3, 5, 3),
            r"\(3, 5, 3\): two axes have the size of channels, 1, 3 or 4; give dataformats=",
        ),
        ((5, 6, 7), r"\(5, 6, 7\): no axis at either end has the size of channels"),
        ((2, 3, 5, 5), r"expected one image, got a batch of shape \(2, 3, 5, 5\)"),
        ((5,), r"expected the axes HW, HWC or CHW, got the shape \(5,\)"),
    ],
)
def test_layouts_that_cannot_be_guessed(shape, message):
    with pytest.raises(ValueError, match=message):
        images.image_levels(np.zeros(shape))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("CHWX", "dataformats='CHWX' is not a layout; expected the axes HWC"),
        ("CCHW", "dataformats='CCHW' is not a layout"),
        ("C", "dataformats='C' is not a layout"),
        ("HW", r"dataformats='HW' has 2 axes, the shape \(3, 4, 5\) has 3"),
    ],
)
def test_layouts_that_do_not_fit(layout, message):
    with pytest.raises(ValueError, match=message):
        images.image_levels(np.zeros((3, 4, 5)), layout)


def test_a_batch_of_images_of_several_kinds():
    batch = np.random.default_rng(1).integers(0, 255, (4, 5, 6, 3), np.uint8)
    assert [one.shape for one in images.batch_levels(batch)] == [(5, 6, 3)] * 4
    np.testing.assert_array_equal(images.batch_levels(batch.transpose(0, 3, 1, 2)), batch)
    np.testing.assert_array_equal(images.batch_levels(list(batch)), batch)
    np.testing.assert_array_equal(
        images.batch_levels([torch.from_numpy(one) for one in batch]), batch
    )
    grey = np.zeros((4, 5, 6))
    assert [one.shape for one in images.batch_levels(grey)] == [(5, 6, 1)] * 4
    with pytest.raises(
        ValueError, match=r"expected one or more images of one size, got \[\(2, 2\)"
    ):
        images.batch_levels([np.zeros((2, 2)), np.zeros((3, 2))])
    with pytest.raises(ValueError, match="expected one or more images of one size, got"):
        images.batch_levels([])
    with pytest.raises(
        ValueError, match=r"\(2, 3, 5, 3\): two axes .* give dataformats='NHWC' or 'NC"
    ):
        images.batch_levels(np.zeros((2, 3, 5, 3)))
    with pytest.raises(
        ValueError, match=r"cannot tell the layout of the shape \(5, 6, 3\); give data"
    ):
        images.batch_levels(np.zeros((5, 6, 3)))
    with pytest.raises(ValueError, match=r"lacks an axis of NHWC"):
        images.batch_levels(grey, "HWC")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_images_of_pillow(mode):
    found = images.image_levels(Image.new("RGB", (4, 3), "white").convert(mode))
    assert found.shape == (3, 4, {"L": 1, "LA": 2, "RGBA": 4}.get(mode, 3))
    assert (found == 255).all()


def test_floats_are_rounded_and_what_is_no_number_is_black():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    np.testing.assert_array_equal(images.image_levels(levels / np.float32(255))[:, :, 0], levels)
    odd = np.array([[np.nan, np.inf, -np.inf, 2.0]])
    assert images.image_levels(odd).ravel().tolist() == [0, 255, 0, 255]
    assert images.torch_levels(odd).ravel().tolist() == [0, 255, 0, 255]


@given(st.integers(1, 9), st.integers(1, 3), st.sampled_from([1, 3]))
def test_videos_are_laid_out_as_with_pytorch(count, length, channels):
    shape = (count, length, channels, 2, 3)
    video = np.random.default_rng(count).random(shape).astype(np.float32)
    expected = (_utils._prepare_video(video).astype(np.float32) * 255).astype(np.uint8)
    np.testing.assert_array_equal(images.torch_frames(torch.from_numpy(video)), expected)


def test_a_video_plays_every_frame_exactly():
    rng = np.random.default_rng(1)
    for channels in (1, 3, 4):
        frames = rng.integers(0, 255, (5, 4, 6, channels), np.uint8)
        with Image.open(io.BytesIO(encode.animated_png(list(frames), 4))) as shown:
            assert (shown.n_frames, shown.info["loop"]) == (5, 0)
            for place, frame in enumerate(frames):
                shown.seek(place)
                assert shown.info["duration"] == 250
                np.testing.assert_array_equal(np.asarray(shown).reshape(frame.shape), frame)
    with pytest.raises(ValueError, match=r"0.02 to 1000 frames a second, not 0"):
        encode.animated_png(list(frames), 0)
    with pytest.raises(ValueError, match="must have one shape"):
        encode.animated_png([], 4)


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_grid_has_every_picture_in_its_place(count, columns):
    batch = np.random.default_rng(count).integers(1, 255, (count, 2, 3, 1), np.uint8)
    whole = images.grid(batch, columns)
    wide = min(count, columns)
    for place, one in enumerate(batch):
        top, left = place // wide * 2, place % wide * 3
        np.testing.assert_array_equal(whole[top : top + 2, left : left + 3], one)
    assert (whole > 0).sum() == batch.size


def test_figures_are_drawn_and_left_alone():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(2, 1), dpi=50)
    figure.add_subplot().plot([1, 2], [3, 1])
    canvas = figure.canvas
    drawn = images.figure_pixels(figure)
    assert figure.canvas is canvas
    assert pyplot.fignum_exists(figure.number)
    with Image.open(_saved(figure)) as saved:
        np.testing.assert_array_equal(drawn, np.asarray(saved)[:, :, :3])
    np.testing.assert_array_equal(
        drawn.transpose(2, 0, 1), _utils.figure_to_image(figure, close=False)
    )
    number = figure.number
    images.figure_pixels(figure, close=True)
    assert not pyplot.fignum_exists(number)
    with pytest.raises(TypeError, match="expected a matplotlib figure, got a ndarray"):
        images.figure_pixels(drawn)


def _saved(figure):
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    return file


def test_boxes_and_sizes():
    pixels = np.full((20, 30, 3), 255, np.uint8)
    drawn = images.with_boxes(pixels, [[5, 4, 25, 15]])
    assert drawn[4, 10].tolist() == drawn[10, 25].tolist() == [255, 0, 0]
    assert (drawn[7:12, 8:22] == 255).all()
    assert images.resized(drawn, 0.5).shape == (10, 15, 3)
    with pytest.raises(ValueError, match=r"expected boxes of the shape \[n, 4\], got \(4,\)"):
        images.with_boxes(pixels, [1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"rescale=0.01 leaves nothing of the shape"):
        images.resized(pixels, 0.01)
