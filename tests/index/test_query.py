"""What the index says of runs, tags and files, and what kind of values a tag has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.messages import decode
from aboard.events.records import frame
from aboard.events.scanner import Scanner
from aboard.index import Source
from aboard.index import index as index_module
from aboard.index.tags import LaterTags, Segments, TagTable, kind_of
from tests import summaries


@pytest.fixture
def sources(tmp_path, index, write):
    """Write runs whose names begin alike, and return sources that overlap."""
    runs = ("run1", "run1/train", "run1-old", "run1.5", "run10", "run2/eval")
    for number, run in enumerate(runs):
        write(run, loss=[(number, 1.0)], **{f"of{number}": [(0, 0.0)]})
    last = write("run2/eval", loss=[(9, 2.0)])
    base = tmp_path / "logs"
    index.refresh(Source(str(base)))
    whole = [Source(str(base / run)) for run in ("run1", "run1-old", "run1", "run2", "none", "")]
    return [*whole, Source.parse(str(last))]


def test_the_marks_of_many_sources_are_those_of_each(index, sources):
    together = index.marks(sources)
    assert together == [index.marks([one])[0] for one in sources]
    names = [
        [one.run_name(directory) for directory in marks]
        for one, marks in zip(sources, together, strict=True)
    ]
    assert names[:6] == [
        [".", "train"],
        ["."],
        [".", "train"],
        ["eval"],
        [],
        ["run1", "run1-old", "run1.5", "run1/train", "run10", "run2/eval"],
    ]
    (of_file,) = together[6].values()
    assert of_file[1] == 1
    (of_directory,) = together[3].values()
    assert of_directory[1] == 2


@pytest.fixture(params=["at once", "later"])
def many(request, monkeypatch):
    """Let even a few tags count as very many."""
    if request.param == "later":
        monkeypatch.setattr(index_module, "_MANY_TAGS", 0)
        monkeypatch.setattr(index_module, "_LARGE_RUN", 1)
    return request.param == "later"


def test_the_tags_of_many_directories_are_those_of_each_source(index, sources, many):
    places = [
        (source, directory)
        for source, marks in zip(sources, index.marks(sources), strict=True)
        for directory in marks
    ]
    found, crowded = index.tags_of(dict.fromkeys(places), most=10)
    assert crowded == {}
    for source in sources[:6]:
        alone = {(tag.run, tag.name): tag for tag in index.tags(source)}
        tables = [table for place, table in found.items() if place[0] == source]
        assert {(t.run, t.name): t for table in tables for t in table.values()} == alone
        for table in tables:
            assert isinstance(table, LaterTags) == many
            about = {name: tag.about for name, tag in table.items()}
            assert {name: table.about(name) for name in table} == about
            assert set(table.kinds()) == {tag.kind for tag in table.values()}
            for one in (*about.values(), None):
                expected = [name for name in table if about[name] == one]
                assert list(table.select(lambda other, one=one: other == one)) == expected
            assert "no tag" not in table
    (of_file,) = [table for place, table in found.items() if place[0] == sources[6]]
    of_file = [(tag.name, tag.first_step) for tag in of_file.values()]
    assert of_file == [("loss", 9)]


@pytest.mark.usefixtures("many")
def test_of_a_run_with_too_many_tags_the_first_are_listed(tmp_path, index, write):
    write("a", **{f"tag{number}": [(0, 1.0)] for number in range(9)})
    write("a", **{f"tag{number}": [(1, 1.0)] for number in range(5, 12)})
    write("b", loss=[(0, 1.0)], lr=[(0, 1.0)])
    source = Source(str(tmp_path / "logs"))
    index.refresh(source)
    places = [(source, str(tmp_path / "logs" / run)) for run in ("a", "b")]
    found, crowded = index.tags_of(places, most=5)
    assert crowded == {places[0][1]: 12}
    names = [(tag.run, tag.name, tag.points) for one in found.values() for tag in one.values()]
    assert sorted(names) == [
        ("a", "tag0", 1),
        ("a", "tag1", 1),
        ("a", "tag10", 1),
        ("a", "tag11", 1),
        ("a", "tag2", 1),
        ("b", "loss", 1),
        ("b", "lr", 1),
    ]
    assert "tag11" in found[places[0]]
    assert found[places[0]].get("tag3") is None
    assert index.tags_of(places, most=12)[1] == {}


def test_what_is_requested_of_very_many_tags_is_read(tmp_path, index, write, monkeypatch):
    monkeypatch.setattr(index_module, "_MANY_TAGS", 0)
    monkeypatch.setattr(index_module, "_LARGE_RUN", 2)
    write("a", **{f"tag{number}": [(number, 1.0)] for number in range(9)})
    write("b", loss=[(0, 1.0)])
    source = Source(str(tmp_path / "logs"))
    index.refresh(source)
    places = [(source, str(tmp_path / "logs" / run)) for run in ("a", "b")]
    found, _ = index.tags_of(places, most=50)
    large, small = (found[place] for place in places)
    assert (type(large), type(small)) == (LaterTags, TagTable)
    expected = {tag.name: tag for tag in index.tags(source) if tag.run == "a"}
    assert large["tag3"] == expected["tag3"]
    assert "tag10" not in large
    assert {kind.plugin for kind in large.kinds()} == {"scalars"}
    assert large.select(lambda about: about.kind.plugin == "images") == ()
    assert large.select(lambda _: True) == tuple(expected)
    assert "tag10" not in large
    assert list(large) == list(expected)
    assert len(large) == 9
    ends = {name: (tag.last_step, tag.max_wall_time, tag.rows) for name, tag in expected.items()}
    assert {name: large.end(name) for name in large} == ends
    assert dict(large) == expected


def test_a_tag_of_many_files_is_what_its_segments_are(tmp_path, index, write):
    for number in range(40):
        write("a", loss=[(number, number / 2), (number, 1.0)], **{f"t{number % 3}": [(0, 1.0)]})
    source = Source(str(tmp_path / "logs"))
    index.refresh(source)
    tags = {tag.name: tag for tag in index.tags(source)}
    loss = tags["loss"]
    assert isinstance(loss.segments, Segments)
    rows = [tuple(one) for one in loss.segments]
    assert (len(loss.segments), len(rows), loss.segments[-1]) == (40, 40, rows[-1])
    assert loss.segments[3:5] == tuple(rows[3:5])
    assert [one.min_step for one in loss.segments] == list(range(40))
    assert len({one.file_name for one in loss.segments}) == 40
    assert (loss.points, loss.in_order) == (80, False)
    again = next(tag for tag in index.tags(source) if tag.name == "loss")
    assert (again, hash(again)) == (loss, hash(loss))
    assert again != tags["t0"]
    with pytest.raises(IndexError):
        loss.segments[40]
    assert index.series(loss).steps.tolist() == list(range(40))


def test_the_stamp_changes_when_a_run_does_and_stays_otherwise(tmp_path, index, write):
    source = Source(str(tmp_path / "logs"))
    write("a", loss=[(0, 1.0)])
    stamps = [index.stamp()]
    index.refresh(source)
    stamps.append(index.stamp())
    index.refresh(source)
    assert index.stamp() == stamps[-1]
    path = write("b", loss=[(0, 1.0)])
    index.refresh(source)
    stamps.append(index.stamp())
    Path(path).unlink()
    index.refresh(source)
    stamps.append(index.stamp())
    assert len(set(stamps)) == 4


DESCRIBED = encode.tensor("x", np.zeros(3))._replace(
    metadata=summaries.metadata("scalars", data_class="tensor", description="# about")
)
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
    "trace": encode.event(1.0, 1, [summaries.trace("x", b"run")]),
    "hparams": encode.event(1.0, 1, [encode.hparams_start({"lr": 0.1})]),
    "legacy image": encode.event(1.0, 1, [encode.legacy_image("x", b"png", 1, 1)]),
    "graph": encode.graph(1.0, b"graph"),
    "run metadata": encode.tagged_run_metadata(1.0, 1, "x", b"run"),
    "mine as tensor": encode.event(1.0, 1, [encode.tensor("x", np.zeros(3), plugin="mine")]),
    "mine unclassed": encode.event(
        1.0, 1, [encode.tensor("x", np.zeros(3), plugin="mine", data_class="")]
    ),
    "scalars called a tensor": encode.event(1.0, 1, [DESCRIBED]),
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
