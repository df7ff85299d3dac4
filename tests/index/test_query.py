"""Asking for many sources at once: each gets what it would get alone."""

from pathlib import Path

import pytest

from aboard.index import Source


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
    assert len(of_file) == 1
    (of_directory,) = together[3].values()
    assert len(of_directory) == 2


def test_the_tags_of_many_directories_are_those_of_each_source(index, sources):
    places = [
        (source, directory)
        for source, marks in zip(sources, index.marks(sources), strict=True)
        for directory in marks
    ]
    found = index.tags_of(dict.fromkeys(places))
    for source in sources[:6]:
        alone = {(tag.run, tag.name): tag for tag in index.tags(source)}
        assert {(t.run, t.name): t for place, t in found if place[0] == source} == alone
    of_file = [(tag.name, tag.first_step) for place, tag in found if place[0] == sources[6]]
    assert of_file == [("loss", 9)]


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
