"""Numbers of every framework become numpy's, and tables in every form Markdown.

TensorFlow and JAX are not installed here: stand-ins have the methods by which theirs are read.
"""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorboard.plugin_util import markdown_to_safe_html

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
