"""`aboard export`: what comes out is what `aboard.open` gives, to the last bit."""

import csv
import io
import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import aboard as library
from aboard import EventWriter
from aboard.cli.export import Csv, Json
from aboard.events import encode
from aboard.index import Index, Series
from tests.engines.unprivileged import powerless

NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@pytest.fixture
def expected(tree, tmp_path):
    with library.open(tree, index=Index(tmp_path / "other" / "index.db")) as logs:
        return logs.to_pandas()


def number(text):
    return NAMES[text] if text in NAMES else float(text)


def read_csv(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    return pd.DataFrame(
        {
            "run": [row["run"] for row in rows],
            "tag": [row["tag"] for row in rows],
            "step": [int(row["step"]) for row in rows],
            "wall_time": [number(row["wall_time"]) for row in rows],
            "value": [number(row["value"]) for row in rows],
        }
    )


def read_json(text):
    frame = pd.DataFrame(json.loads(text))
    return frame.assign(value=[number(value) for value in frame["value"]])


def test_csv_holds_every_bit(aboard, tree, expected):
    result = aboard("export", tree)
    pd.testing.assert_frame_equal(read_csv(result.out), expected, check_exact=True)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[0] == "run,tag,step,wall_time,value"
    assert "b,loss,1,1700000101.0,NaN\n" in result.out
    assert "b,loss,2,1700000102.0,Infinity\n" in result.out
    assert "b,loss,3,1700000103.0,-Infinity\n" in result.out
    assert "a/train,exact,3,1700000000.25,0.1\n" in result.out


@pytest.mark.parametrize("how", [["--format", "json"], ["--json"]])
def test_json_holds_every_bit(aboard, tree, expected, how):
    result = aboard("export", tree, *how)
    pd.testing.assert_frame_equal(read_json(result.out), expected, check_exact=True)
    lines = result.out.splitlines()
    assert lines[0] == "["
    assert lines[-1] == "]"
    assert len(lines) == len(expected) + 2
    assert '{"run":"b","tag":"loss","step":1,"wall_time":1700000101.0,"value":"NaN"},' in lines


def test_parquet_holds_every_bit(aboard, tree, expected, tmp_path):
    result = aboard("export", tree, "-o", "points.parquet")
    frame = pd.read_parquet(tmp_path / "points.parquet")
    pd.testing.assert_frame_equal(frame, expected, check_exact=True, check_dtype=False)
    assert result == (0, "", "aboard: 15 points of 3 series written to points.parquet\n")


def test_parquet_through_a_pipe(variables, tree, expected):
    done = subprocess.run(
        [sys.executable, "-m", "aboard", "export", tree, "--format", "parquet"],
        env=variables,
        capture_output=True,
        check=True,
    )
    frame = pd.read_parquet(io.BytesIO(done.stdout))
    pd.testing.assert_frame_equal(frame, expected, check_exact=True, check_dtype=False)


def test_parquet_is_not_for_terminals(variables, tree):
    leader, follower = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "aboard", "export", tree, "--format", "parquet"],
        env=variables,
        stdout=follower,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(leader)
    os.close(follower)
    assert done.returncode == 2
    assert done.stderr == (b"aboard: Parquet is a binary format; name a file with -o FILE.\n")


def test_parquet_without_pyarrow_says_how_to_get_it(aboard, tree, tmp_path):
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    result = aboard("export", tree, "-o", "x.parquet", process=True, PYTHONPATH=str(tmp_path))
    assert result == (
        1,
        "",
        'aboard: Parquet needs pyarrow, which is not installed: pip install "aboard[parquet]".\n',
    )
    assert not list(tmp_path.glob("*x.parquet*"))


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_the_name_picks_the_format(aboard, tree, ending, tmp_path):
    assert aboard("export", tree, "-o", f"points.{ending}").code == 0
    start = (tmp_path / f"points.{ending}").read_bytes()[:4]
    assert start == {"csv": b"run,", "json": b'[\n{"', "parquet": b"PAR1"}[ending]


def test_runs_and_tags_are_chosen_by_pattern(aboard, tree):
    rows = read_csv(aboard("export", tree, "--run", "a/*", "--tag", "l*").out)
    assert set(rows["run"]) == {"a/train"}
    assert set(rows["tag"]) == {"loss"}


def test_several_patterns_are_a_union(aboard, tree):
    rows = read_csv(aboard("export", tree, "--tag", "exact", "--tag", "loss", "--run", "a*").out)
    assert set(rows["tag"]) == {"exact", "loss"}
    rows = read_csv(aboard("export", tree, "--run", "a/train", "--run", "b", "--tag", "loss").out)
    assert set(rows["run"]) == {"a/train", "b"}


def test_each_pattern_that_picks_nothing_is_an_error(aboard, tree, tmp_path):
    result = aboard(
        *("export", tree, "-o", "x.csv", "--tag", "los", "--tag", "loss", "--tag", "zzz")
    )
    assert result == (
        1,
        "",
        (
            "aboard: no tag matches --tag 'los'; did you mean 'loss'?\n"
            "aboard: no tag matches --tag 'zzz'; there are 'exact', 'loss', 'notes', 'picture'.\n"
        ),
    )
    assert not (tmp_path / "x.csv").exists()
    assert aboard("export", tree, "--tag", "loss", "--tag", "notes").err == (
        "aboard: --tag 'notes' matches no scalars, only text; 'aboard ls --tags' lists all tags.\n"
    )
    assert aboard("export", tree, "--run", "a*", "--tag", "notes").err == (
        "aboard: no tag matches --tag 'notes'; there are 'exact', 'loss'.\n"
    )


def test_tags_of_hyperparameters_are_not_offered(aboard, tmp_path):
    with EventWriter(tmp_path / "logs") as writer:
        writer.scalar("loss", 1.0, 0)
        writer.add([encode.hparams_start({"lr": 0.1})], 0)
    assert aboard("export", tmp_path / "logs", "--tag", "nothing*").err == (
        "aboard: no tag matches --tag 'nothing*'; there are 'loss'.\n"
    )


@pytest.fixture
def after_choosing(tmp_path, monkeypatch):
    """Let something happen between the choice of series and their being read."""
    from aboard.cli import export

    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    real = export._choose

    def happen(what):
        def choose(*args):
            chosen = real(*args)
            what()
            return chosen

        monkeypatch.setattr(export, "_choose", choose)

    return happen


def test_what_another_process_reads_anew_is_exported_in_full(tree, expected, after_choosing, capfd):
    from aboard.cli.app import run

    def read_anew():
        with Index() as other:
            library.Logs(tree, index=other, anew=True)

    after_choosing(read_anew)
    assert run(["export", str(tree)]) == 0
    rows = read_csv(capfd.readouterr().out)
    assert len(rows) == len(expected)


def test_what_vanishes_is_said_and_the_rest_is_exported(tree, after_choosing, capfd, tmp_path):
    from aboard.cli.app import run

    def remove():
        shutil.rmtree(tree / "b")
        with Index() as other:
            library.Logs(tree, index=other)

    after_choosing(remove)
    output = tmp_path / "points.csv"
    assert run(["export", str(tree), "-o", str(output)]) == 1
    assert set(read_csv(output.read_text())["run"]) == {"a/train"}
    assert capfd.readouterr().err == (
        f"aboard: tag 'loss' of run 'b' is no longer in {tree}: its files were deleted or replaced"
        " since it was listed. List the tags again.\n"
        f"aboard: 11 points of 2 series written to {output}\n"
    )


def test_samples(aboard, tree):
    rows = read_csv(aboard("export", tree, "--tag", "loss", "--run", "a*", "--samples", 4).out)
    assert rows["step"].tolist() == [0, 1, 5, 9]


def test_several_sources(aboard, tree):
    rows = read_csv(aboard("export", tree / "a", tree / "b", "--tag", "loss").out)
    assert list(dict.fromkeys(rows["run"])) == ["a/train", "b"]


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (["--tag", "los"], 1, "no tag matches --tag 'los'; did you mean 'loss'?"),
        (["--run", "zzz"], 1, "no run matches --run 'zzz'; there are 'a/train', 'b'."),
        (
            ["--tag", "picture"],
            1,
            "--tag 'picture' matches no scalars, only images; 'aboard ls --tags' lists all tags.",
        ),
        (
            ["-o", "points.txt"],
            2,
            "points.txt has no known file extension; add --format csv, json or parquet.",
        ),
        (
            ["--json", "--format", "csv"],
            2,
            "use only one of --json and --format csv.",
        ),
        (["-o", "no/x.csv"], 1, "no/x.csv: directory no not found. Create it first."),
        (
            ["--format", "xml"],
            2,
            (
                "invalid value for '--format': 'xml' is not one of 'csv', 'json', 'parquet'."
                " See 'aboard export --help'."
            ),
        ),
        (
            ["--samples", "0"],
            2,
            ("invalid value for '--samples': 0 must be at least 1. See 'aboard export --help'."),
        ),
    ],
)
def test_what_cannot_be_meant(aboard, tree, options, code, line):
    assert aboard("export", tree, *options) == (code, "", f"aboard: {line}\n")


def test_a_closed_pipe_ends_quietly(variables, tmp_path):
    with EventWriter(tmp_path / "logs", flush_secs=1e9) as writer:
        for step in range(50_000):
            writer.scalar("loss", step, step)
    for form in ("csv", "json", "parquet"):
        process = subprocess.Popen(
            [sys.executable, "-m", "aboard", "export", tmp_path / "logs", "--format", form],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(timeout=180) == 0


def test_a_file_is_replaced_only_when_the_new_one_is_complete(tree, tmp_path, monkeypatch, capfd):
    from aboard.cli import export
    from aboard.cli.app import run

    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    old = tmp_path / "points.csv"
    old.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export.Csv, "write", fail)
    assert run(["export", str(tree), "-o", str(old)]) == 1
    assert capfd.readouterr().err == f"aboard: {old}: no space left on device.\n"
    assert old.read_text() == "old"
    assert not list(tmp_path.glob(".aboard-export-*"))
    monkeypatch.undo()
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    assert run(["export", str(tree), "-o", str(old)]) == 0
    assert old.read_text().startswith("run,tag,")


def test_a_link_is_written_through_and_a_device_is_kept(aboard, tree, tmp_path):
    (tmp_path / "link.csv").symlink_to("target.csv")
    assert aboard("export", tree, "-o", "link.csv").code == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "target.csv").read_text().startswith("run,")
    (tmp_path / "null.csv").symlink_to(os.devnull)
    assert aboard("export", tree, "-o", "null.csv").code == 0


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_keeps_its_mode(aboard, tree, tmp_path, mode):
    old = tmp_path / "points.csv"
    old.write_text("old")
    old.chmod(mode)
    assert aboard("export", tree, "-o", "points.csv").code == 0
    assert old.read_text().startswith("run,tag,")
    assert old.stat().st_mode & 0o7777 == mode
    assert aboard("export", tree, "-o", "new.csv").code == 0
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "new.csv").stat().st_mode == plain.stat().st_mode


def test_a_file_in_a_directory_that_takes_no_other_is_written_in_place(variables, tree, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir()
    old = closed / "points.csv"
    old.write_text("old" * 10_000)
    closed.chmod(0o555)

    def export(name):
        return subprocess.run(
            powerless(sys.executable, "-m", "aboard", "export", tree, "-o", closed / name),
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )

    try:
        done, refused = export("points.csv"), export("new.csv")
    finally:
        closed.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert len(read_csv(old.read_text())) == 15
    assert refused.returncode == 1
    assert refused.stderr == f"aboard: {closed}/new.csv: permission denied.\n"


def test_a_full_device_is_named(aboard, tree):
    for form in ("csv", "json", "parquet"):
        result = aboard("export", tree, "--format", form, "-o", "/dev/full")
        assert result == (1, "", "aboard: /dev/full: no space left on device.\n")


def series(values):
    count = len(values)
    return Series(np.arange(count), np.arange(count) / 3, np.array(values, np.float64))


def test_awkward_names_survive():
    names = ['a,b "c"', "line\nbreak", " space ", "", "ümläut 漢字 \\ \t"]
    for name in names:
        out = io.BytesIO()
        form = Csv(out)
        form.write(name, name, series([1.0]))
        form.finish()
        (row,) = list(csv.DictReader(io.StringIO(out.getvalue().decode(), newline="")))
        assert (row["run"], row["tag"]) == (name, name)
        out = io.BytesIO()
        form = Json(out)
        form.write(name, name, series([1.0]))
        form.finish()
        (row,) = json.loads(out.getvalue())
        assert (row["run"], row["tag"]) == (name, name)


def test_any_float_survives_in_blocks_of_any_number():
    bits = np.random.default_rng(1).integers(0, 1 << 64, 40_000, dtype=np.uint64)
    values = np.concatenate([bits.view(np.float64), [0.0, -0.0, 5e-324, 1.7976931348623157e308]])
    out = io.BytesIO()
    form = Csv(out)
    form.write("r", "t", series(values))
    texts = [line.rsplit(",", 1)[1] for line in out.getvalue().decode().splitlines()[1:]]
    read = np.array([number(text) for text in texts])
    assert ((read.view(np.uint64) == values.view(np.uint64)) | np.isnan(values)).all()
    assert np.isnan(read[np.isnan(values)]).all()


def test_json_of_nothing_is_an_empty_array():
    out = io.BytesIO()
    Json(out).finish()
    assert json.loads(out.getvalue()) == []


def test_a_question_chooses_the_runs_to_write(aboard, tree):
    document = aboard("export", tree, "--where", "metrics.train/loss.count == 10", "--json").json
    assert {one["run"] for one in document} == {"a/train"}
