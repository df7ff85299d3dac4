"""The kind of a tag is what TensorBoard's own migrations make of its first value."""

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.decode import decode
from aboard.events.records import frame
from aboard.events.scanner import Scanner
from aboard.index.kinds import kind_of

EVENTS = {
    "simple": encode.event(1.0, 1, [encode.scalar("x", 1.0)]),
    "scalar": encode.event(1.0, 1, [encode.scalar_tensor("x", 1.0)]),
    "text": encode.event(1.0, 1, [encode.text("x", "hello")]),
    "histogram": encode.event(1.0, 1, [encode.histogram("x", [[0, 1, 2]])]),
    "images": encode.event(1.0, 1, [encode.images("x", [b"png"], 1, 1)]),
    "audio": encode.event(1.0, 1, [encode.audio("x", [b"wav"])]),
    "pr curve": encode.event(1.0, 1, [encode.pr_curve("x", np.zeros((6, 5)))]),
    "mesh": encode.event(1.0, 1, encode.mesh("x", np.zeros((1, 3, 3)))[:1]),
    "custom scalars": encode.event(1.0, 1, [encode.custom_scalars(b"")]),
    "keras": encode.event(1.0, 1, [encode.keras_graph("{}")]),
    "trace": encode.event(1.0, 1, [encode.trace("x", b"run")]),
    "hparams": encode.event(1.0, 1, [encode.hparams_start({"lr": 0.1})]),
    "legacy image": encode.event(1.0, 1, [encode.legacy_image("x", b"png", 1, 1)]),
    "graph": encode.graph(1.0, b"graph"),
    "run metadata": encode.tagged_run_metadata(1.0, 1, "x", b"run"),
    "mine as tensor": encode.event(1.0, 1, [encode.tensor("x", np.zeros(3), plugin="mine")]),
    "mine unclassed": encode.event(
        1.0, 1, [encode.tensor("x", np.zeros(3), plugin="mine", data_class="")]
    ),
    "scalars called a tensor": encode.event(
        1.0, 1, [encode.tensor("x", np.zeros(3), plugin="scalars", description="# about")]
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_kinds_agree_with_the_migrations(name):
    data = frame(EVENTS[name])
    scanner = Scanner()
    scanner.scan(data, 0, len(data))
    (series,) = scanner.series()
    kind = kind_of(series.origin, series.metadata)
    (value,) = decode(EVENTS[name])
    assert (kind.plugin, kind.data_class) == (value.plugin, value.data_class)
    assert kind.description == ("# about" if "called" in name else "")


def test_damaged_metadata_is_no_kind_at_all():
    assert kind_of(8, b"\xff\xff") == ("", "", "", "")
