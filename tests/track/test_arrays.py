"""Numbers of every framework become numpy's, and tables in every form Markdown.

Images in every layout come out upright and in the right shade; the same as PyTorch's.

TensorFlow and JAX are not installed here: stand-ins have the methods by which theirs are read.
"""

import io
import itertools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from tensorboard.plugin_util import markdown_to_safe_html

from aboard.events import encode
from aboard.events.messages import keep_tensorflow_out
from aboard.track import arrays
from aboard.track.arrays import (
    MOST_COLUMNS,
    MOST_ROWS,
    markdown,
    table_of,
    to_number,
    to_numpy,
    to_reals,
    to_step,
)

keep_tensorflow_out()

from torch.utils.tensorboard import _utils, summary  # noqa: E402

NUMBERS = (
    hnp.floating_dtypes()
    | hnp.integer_dtypes()
    | hnp.boolean_dtypes()
    | hnp.complex_number_dtypes()
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


class EagerTensor:
    """What TensorFlow has: a method that copies to numpy, also from a GPU."""

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def numpy(self):
        return self._array


class SymbolicTensor:
    shape, dtype = (3,), "float32"

    def numpy(self):
        raise NotImplementedError("numpy() is only available when eager execution is enabled.")


class JaxArray:
    """What JAX has: numpy's protocol."""

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __array__(self, dtype=None, copy=None):
        return self._array


class CupyArray:
    """What CuPy has: it refuses numpy's protocol."""

    __cuda_array_interface__ = None

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def get(self):
        return self._array


def assert_same(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@given(hnp.arrays(NUMBERS, SHAPES))
def test_arrays_keep_their_numbers_and_type(array):
    for wrapped in (array, EagerTensor(array), JaxArray(array), CupyArray(array)):
        assert_same(to_numpy(wrapped), array)


@given(hnp.arrays(st.sampled_from(["f2", "f4", "f8", "i4", "i8", "u1", "?", "c8"]), SHAPES))
def test_tensors_keep_their_numbers_and_type(array):
    assert_same(to_numpy(torch.from_numpy(array.copy())), array)


@given(hnp.arrays("f8", hnp.array_shapes(min_dims=2, max_dims=3, max_side=4)))
def test_nested_lists(array):
    np.testing.assert_array_equal(to_numpy(array.tolist()), array)
    np.testing.assert_array_equal(
        to_numpy([torch.from_numpy(row) for row in np.array(array)]), array
    )


def test_tensors_in_every_state():
    numbers = [[0.5, -1.0], [2.0, 3.0]]
    plain = torch.tensor(numbers)
    for tensor in (
        plain.requires_grad_(),
        torch.nn.Parameter(plain.detach()),
        plain * 1,
        plain.to(torch.bfloat16),
        plain.to(torch.float16),
        plain.to_sparse(),
    ):
        np.testing.assert_array_equal(to_numpy(tensor), numbers)
    assert to_numpy(torch.tensor([3e38], dtype=torch.bfloat16)).dtype == np.float32
    conjugate = torch.tensor([1 + 2j]).conj()
    assert to_numpy(conjugate).tolist() == [1 - 2j]
    small = torch.tensor([1.5]).to(torch.float8_e4m3fn)
    assert to_numpy(small).tolist() == [1.5]
    with pytest.raises(ValueError, match=r"of shape \(2,\) .* is on the meta device"):
        to_numpy(torch.empty(2, device="meta"))


def test_tensors_without_a_shape_of_their_own():
    parts = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"cannot take numbers from a torch\..*NestedTensor"):
        to_numpy(parts)


def test_types_that_numpy_lacks():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2, 3e38], ml_dtypes.bfloat16)
    for wrapped in (array, EagerTensor(array), JaxArray(array)):
        assert_same(to_numpy(wrapped), array.astype("f4"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", r"expected numbers, got a str \(text\)"),
        (None, "expected numbers, got a NoneType"),
        ({"a": 1}, "expected numbers, got a dict"),
        ([1, "a"], "expected numbers, got a list"),
        (np.array(["a"]), r"expected numbers, got a numpy.ndarray of shape \(1,\) and type <U1"),
        (SymbolicTensor(), r"cannot take numbers from a .*SymbolicTensor of shape \(3,\) .*eager"),
    ],
)
def test_what_holds_no_numbers(value, message):
    with pytest.raises(TypeError, match=message):
        to_numpy(value)


def test_rows_of_different_lengths():
    with pytest.raises(ValueError, match=r"expected parts of one shape, got \[\(1,\), \(2,\)\]"):
        to_numpy([[1], [2, 3]])


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        True + 1,
        np.float32(2),
        np.int8(2),
        np.array([[2.0]]),
        [2],
        torch.tensor(2),
        torch.tensor([2.0], requires_grad=True),
        EagerTensor(np.array(2.0)),
        JaxArray(np.array(2)),
    ],
)
def test_one_number(value):
    number = to_number(value)
    assert (type(number), number) == (float, 2.0)


def test_not_one_number():
    with pytest.raises(ValueError, match=r"expected a single number, got the shape \(2,\)"):
        to_number(torch.zeros(2))
    with pytest.raises(TypeError, match="expected real numbers, got a complex"):
        to_number(1j)
    with pytest.raises(TypeError, match=r"expected real numbers, got a numpy.ndarray"):
        to_reals(np.array([1j]))


@pytest.mark.parametrize("step", [7, np.int64(7), torch.tensor(7), np.array(7), np.array([7]), 7.0])
def test_steps(step):
    assert to_step(step) == 7
    assert to_step(None) == 0


def test_no_framework_is_imported():
    heavy = ["torch", "tensorflow", "jax", "matplotlib", "PIL", "tensorboard", "pandas", "obstore"]
    modules = "aboard.track.summary, aboard.track.media"
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


FRAME = pd.DataFrame({"name": ["a", "b|c"], "loss": [0.5, 1 / 3], "n": [1, 2]})


@pytest.mark.parametrize(
    "rows",
    [
        FRAME,
        FRAME.to_dict("list"),
        FRAME.to_dict("records"),
        {"name": ["a", "b|c"], "loss": torch.tensor([0.5, 1 / 3]), "n": np.array([1, 2])},
    ],
)
def test_tables(log, logged, rows):
    log.log_table("table", rows)
    [text] = logged("table")[0].value
    html = markdown_to_safe_html(text)
    assert cells_of(html) == [["name", "loss", "n"], ["a", "0.5", "1"], ["b|c", "0.333333", "2"]]


def cells_of(html):
    """Return the cells of the only table, row by row."""
    rows = [row.replace("<th", "<td").split("<td")[1:] for row in html.split("<tr>")[1:]]
    return [[cell.split("</t")[0].split(">", 1)[1] for cell in row] for row in rows]


def test_tables_of_rows():
    assert table_of([[1, 2], [3, 4]]) == (["0", "1"], [[1, 2], [3, 4]])
    assert table_of([(1, 2)], ["a", "b"]) == (["a", "b"], [[1, 2]])
    assert table_of(np.eye(2, dtype=int)) == (["0", "1"], [[1, 0], [0, 1]])
    assert table_of([{"a": 1}, {"b": 2}]) == (["a", "b"], [[1, ""], ["", 2]])


@given(st.text(st.characters(codec="utf-8", categories=["L", "N"], include_characters="|\\ \n")))
def test_a_cell_shows_what_it_was(text):
    html = markdown_to_safe_html(markdown(table_of({"a": [f"x{text}y"], "b": ["z"]})))
    [shown, last] = cells_of(html)[1]
    assert shown.split("<br>") == f"x{text}y".splitlines()
    assert last == "z"


def test_what_a_large_table_leaves_out_is_said():
    text = markdown(table_of(np.zeros((MOST_ROWS + 2, MOST_COLUMNS + 3), int)))
    assert text.endswith("\n\n*Not shown: 2 more rows and 3 more columns.*")
    assert text.count("\n") == MOST_ROWS + 3
    assert "Not shown" not in markdown(table_of(np.zeros((MOST_ROWS, MOST_COLUMNS), int)))


# Images.

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
        found = arrays.torch_image(given_pixels, layout)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(arrays.torch_image(pixels, layout.lower()), expected)


@given(layouts_and_pixels(channels=(1, 2, 3, 4)))
def test_every_layout_is_transposed_to_one(image):
    layout, pixels = image
    upright = arrays.arranged(pixels, layout, "NHWC" if "N" in layout else "HWC")
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
    assert arrays.guess_layout(shape) == layout
    assert arrays.guess_batch_layout((9, *shape)) == "N" + layout


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
        arrays.image_levels(np.zeros(shape))


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
        arrays.image_levels(np.zeros((3, 4, 5)), layout)


def test_a_batch_of_images_of_several_kinds():
    batch = np.random.default_rng(1).integers(0, 255, (4, 5, 6, 3), np.uint8)
    assert [one.shape for one in arrays.batch_levels(batch)] == [(5, 6, 3)] * 4
    np.testing.assert_array_equal(arrays.batch_levels(batch.transpose(0, 3, 1, 2)), batch)
    np.testing.assert_array_equal(arrays.batch_levels(list(batch)), batch)
    np.testing.assert_array_equal(
        arrays.batch_levels([torch.from_numpy(one) for one in batch]), batch
    )
    grey = np.zeros((4, 5, 6))
    assert [one.shape for one in arrays.batch_levels(grey)] == [(5, 6, 1)] * 4
    with pytest.raises(
        ValueError, match=r"expected one or more images of one size, got \[\(2, 2\)"
    ):
        arrays.batch_levels([np.zeros((2, 2)), np.zeros((3, 2))])
    with pytest.raises(ValueError, match="expected one or more images of one size, got"):
        arrays.batch_levels([])
    with pytest.raises(
        ValueError, match=r"\(2, 3, 5, 3\): two axes .* give dataformats='NHWC' or 'NC"
    ):
        arrays.batch_levels(np.zeros((2, 3, 5, 3)))
    with pytest.raises(
        ValueError, match=r"cannot tell the layout of the shape \(5, 6, 3\); give data"
    ):
        arrays.batch_levels(np.zeros((5, 6, 3)))
    with pytest.raises(ValueError, match=r"lacks an axis of NHWC"):
        arrays.batch_levels(grey, "HWC")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_images_of_pillow(mode):
    found = arrays.image_levels(Image.new("RGB", (4, 3), "white").convert(mode))
    assert found.shape == (3, 4, {"L": 1, "LA": 2, "RGBA": 4}.get(mode, 3))
    assert (found == 255).all()


def test_floats_are_rounded_and_what_is_no_number_is_black():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    np.testing.assert_array_equal(arrays.image_levels(levels / np.float32(255))[:, :, 0], levels)
    odd = np.array([[np.nan, np.inf, -np.inf, 2.0]])
    assert arrays.image_levels(odd).ravel().tolist() == [0, 255, 0, 255]
    assert arrays.torch_levels(odd).ravel().tolist() == [0, 255, 0, 255]


@given(st.integers(1, 9), st.integers(1, 3), st.sampled_from([1, 3]))
def test_videos_are_laid_out_as_with_pytorch(count, length, channels):
    shape = (count, length, channels, 2, 3)
    video = np.random.default_rng(count).random(shape).astype(np.float32)
    expected = (_utils._prepare_video(video).astype(np.float32) * 255).astype(np.uint8)
    np.testing.assert_array_equal(arrays.torch_frames(torch.from_numpy(video)), expected)


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
    whole = arrays.grid(batch, columns)
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
    drawn = arrays.figure_pixels(figure)
    assert figure.canvas is canvas
    assert pyplot.fignum_exists(figure.number)
    with Image.open(_saved(figure)) as saved:
        np.testing.assert_array_equal(drawn, np.asarray(saved)[:, :, :3])
    np.testing.assert_array_equal(
        drawn.transpose(2, 0, 1), _utils.figure_to_image(figure, close=False)
    )
    number = figure.number
    arrays.figure_pixels(figure, close=True)
    assert not pyplot.fignum_exists(number)
    with pytest.raises(TypeError, match="expected a matplotlib figure, got a ndarray"):
        arrays.figure_pixels(drawn)


def _saved(figure):
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    return file


def test_boxes_and_sizes():
    pixels = np.full((20, 30, 3), 255, np.uint8)
    drawn = arrays.with_boxes(pixels, [[5, 4, 25, 15]])
    assert drawn[4, 10].tolist() == drawn[10, 25].tolist() == [255, 0, 0]
    assert (drawn[7:12, 8:22] == 255).all()
    assert arrays.resized(drawn, 0.5).shape == (10, 15, 3)
    with pytest.raises(ValueError, match=r"expected boxes of the shape \[n, 4\], got \(4,\)"):
        arrays.with_boxes(pixels, [1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"rescale=0.01 is too small for the shape"):
        arrays.resized(pixels, 0.01)
