"""Tables in every form, as TensorBoard shows them."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugin_util import markdown_to_safe_html

from aboard.track.media.tables import MOST_COLUMNS, MOST_ROWS, markdown, table_of

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
