"""The files of a `SummaryWriter`: where they go, when they are there, and what ends them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from reading import assert_equal, read_ours, read_stock
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.compat.proto.event_pb2 import SessionLog
from torch.utils import tensorboard as theirs
from torch.utils.tensorboard import summary as torch_summary

import aboard
from aboard.storage.uri import open_storage
from aboard.track.file_writer import FileWriter

NOW = 1_700_000_000.0


def test_writing_after_closing_goes_on_in_another_file(tmp_path, index):
    writer = aboard.SummaryWriter(tmp_path, filename_suffix=".mine")
    writer.add_scalar("a", 1, 1)
    writer.close()
    writer.close()
    writer.add_scalar("a", 2, 2)
    writer.add_scalars("b", {"c": 3}, 3)
    writer.close()
    assert writer.file_writer is None
    files = sorted(path.name for path in tmp_path.glob("*tfevents*"))
    assert len(files) == 2
    assert all(name.endswith(".mine") for name in files)
    assert read_ours(tmp_path, index)[".", "a"].points[1].step == 2


def test_flush_brings_everything_to_the_disk(tmp_path, index):
    writer = aboard.SummaryWriter(tmp_path, flush_secs=1000)
    writer.add_scalar("a", 1, 1)
    writer.add_scalars("b", {"c": 3}, 3)
    writer.flush()
    assert set(read_ours(tmp_path, index)) == {(".", "a"), ("b_c", "b")}
    writer.close()


def test_a_purged_step(tmp_path, index):
    for name, kind in (("theirs", theirs.SummaryWriter), ("ours", aboard.SummaryWriter)):
        for purge_step, numbers in ((None, range(5)), (2, range(2, 4))):
            with kind(str(tmp_path / name), purge_step=purge_step) as writer:
                for step in numbers:
                    writer.add_scalar("a", step * (purge_step or 1), step)
        found = read_ours(tmp_path / name, index)
        assert [(one.step, one.value) for one in found[".", "a"].points] == [
            (0, 0),
            (1, 1),
            (2, 4),
            (3, 6),
        ]
        assert session_starts(tmp_path / name) == [2]


def session_starts(directory):
    events = (
        event
        for path in directory.glob("*tfevents*")
        for event in event_file_loader.EventFileLoader(str(path)).Load()
    )
    return [event.step for event in events if event.session_log.status == SessionLog.START]


def test_where_logs_go_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ABOARD_LOGDIR", "PAI_OUTPUT_TENSORBOARD", "AIP_TENSORBOARD_LOG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XT_OUTPUT_MNT", raising=False)
    with aboard.SummaryWriter(comment="_more") as ours, theirs.SummaryWriter() as plain:
        assert Path(ours.log_dir).parent == Path(plain.log_dir).parent == Path("runs")
        assert Path(ours.log_dir).name.endswith(Path(plain.log_dir).name[14:] + "_more")
        assert list(Path(ours.get_logdir()).glob("*tfevents*"))
    monkeypatch.setenv("AIP_TENSORBOARD_LOG_DIR", str(tmp_path / "platform"))
    with aboard.SummaryWriter(comment="ignored") as writer:
        assert writer.get_logdir() == str(tmp_path / "platform")
    monkeypatch.setenv("ABOARD_LOGDIR", str(tmp_path / "ours"))
    with aboard.SummaryWriter() as writer:
        assert writer.get_logdir() == str(tmp_path / "ours")
    with aboard.SummaryWriter(tmp_path / "told") as writer:
        assert writer.get_logdir() == tmp_path / "told"
    with aboard.SummaryWriter(f"file://{tmp_path}/uri") as writer:
        writer.add_scalar("a", 1)
    assert list((tmp_path / "uri").glob("*tfevents*"))


def test_protobufs_of_their_own_makers(tmp_path, index):
    """Loggers on top of PyTorch's writer build summaries and hand them to its file writer."""
    from tensorboard.compat.proto import event_pb2

    records = torch_summary.hparams({"lr": 0.1}, {"loss": 1.0})
    for name, kind in (("theirs", theirs.SummaryWriter), ("ours", aboard.SummaryWriter)):
        with kind(str(tmp_path / name)) as writer:
            for record in records:
                writer.file_writer.add_summary(record)
            writer._get_file_writer().add_summary(torch_summary.scalar("loss", 2.0), 5, NOW)
            event = event_pb2.Event(summary=torch_summary.text("note", "hello"))
            writer.file_writer.add_event(event, torch.tensor(7), NOW)
            writer.file_writer.flush()
            writer.file_writer.add_summary(torch_summary.scalar("loss", 3.0), 6, NOW)
            assert writer.file_writer.get_logdir() == str(tmp_path / name)
    found = read_stock(tmp_path / "ours")
    assert_equal(found, read_stock(tmp_path / "theirs"))
    assert_equal(read_ours(tmp_path / "ours", index), found)


def test_a_file_writer_is_reopened(tmp_path, index):
    writer = FileWriter(tmp_path, flush_secs=1000)
    writer.add_summary(torch_summary.scalar("a", 1.0), 1)
    writer.reopen()
    writer.close()
    writer.reopen()
    writer.add_summary(torch_summary.scalar("a", 2.0), 2)
    writer.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert [one.step for one in read_ours(tmp_path, index)[".", "a"].points] == [1, 2]


def test_a_bucket(tmp_path, index, s3_bucket, monkeypatch):
    monkeypatch.setenv("ABOARD_SHIP_SECS", "0.1")
    place = f"{s3_bucket}/{tmp_path.name}"
    with aboard.SummaryWriter(place) as writer:
        writer.add_scalar("a", 1.0, 1)
        writer.add_scalars("b", {"c": 2.0}, 1)
        writer.add_embedding(np.zeros((2, 2)))
        assert writer.log_dir == place
        spool = Path(writer.get_logdir())
        (spool / "more.txt").write_text("mine")
    assert not spool.exists()
    storage = open_storage(place)
    assert storage.read("more.txt") == b"mine"
    assert b"tensors.tsv" in storage.read("projector_config.pbtxt")
    assert set(read_ours(place, index)) == {(".", "a"), ("b_c", "b")}


def test_a_bucket_has_everything_when_a_program_ends_without_closing(tmp_path, index, s3_bucket):
    place = f"{s3_bucket}/{tmp_path.name}"
    code = f"import aboard; w = aboard.SummaryWriter({place!r}); w.add_scalar('a', 1.0, 1)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(read_ours(place, index)) == {(".", "a")}


def test_a_disk_that_cannot_be_written_stops_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with aboard.SummaryWriter(tmp_path / "file" / "run") as writer:
        writer.add_scalar("a", 1)
        writer.add_scalars("b", {"c": 2})
        writer.add_hparams({"lr": 1}, {"loss": 1})
        writer.add_embedding(np.zeros((2, 2)))
        writer.flush()
    said = capsys.readouterr().err.splitlines()
    assert said
    assert all(line.startswith("aboard: ") for line in said)
    assert any("the embedding 'default' was not written" in line for line in said)
    (tmp_path / "file").unlink()


ALONE = """
import sys
for name in ("torch", "tensorflow", "jax", "matplotlib", "tensorboard", "google.protobuf", "PIL"):
    sys.modules[name] = None
import aboard
with aboard.SummaryWriter(sys.argv[1]) as w:
    w.add_scalar("scalar", 1.0, 1)
    w.add_histogram("histogram", [1, 2, 3])
    w.add_image("image", [[[0.5]], [[0.5]], [[0.5]]])
    w.add_video("video", [[[[[0.5]]]]])
    w.add_audio("audio", [0.5, 0.5])
    w.add_text("text", "hello")
    w.add_pr_curve("curve", [0, 1], [0.1, 0.9])
    w.add_mesh("mesh", [[[1, 2, 3]]])
    w.add_custom_scalars_multilinechart(["a"])
    w.add_embedding([[1, 2], [3, 4]], ["a", "b"], [[[[0.5]]], [[[0.5]]]])
    w.add_graph(b"")
    w.add_hparams({"lr": 1}, {"loss": 1}, run_name=".")
"""


def test_nothing_else_needs_to_be_installed(tmp_path, index):
    subprocess.run([sys.executable, "-c", ALONE, tmp_path], check=True)
    assert {tag for _, tag in read_ours(tmp_path, index)} == {
        "scalar",
        "histogram",
        "image",
        "video",
        "audio",
        "text/text_summary",
        "curve",
        "mesh_VERTEX",
        "custom_scalars__config__",
        "__run_graph__",
        "_hparams_/experiment",
        "_hparams_/session_start_info",
        "_hparams_/session_end_info",
        "loss",
    }
