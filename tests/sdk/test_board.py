"""The board of a run in progress, on a real hub."""

import pytest

import aboard
from tests.engines.real_hub import losses


@pytest.fixture(autouse=True)
def _spool(tmp_path, monkeypatch):
    monkeypatch.setenv("ABOARD_SPOOL", str(tmp_path / "spool"))


def test_a_run_has_a_board_with_what_it_logged_so_far(client, tmp_path):
    with aboard.init("cifar10", "mine", root=str(tmp_path), flush_secs=60) as run:
        assert run.board().state == "running"
        run.log_metrics({"loss": 2.0})
        board = run.board(wait=True)
        assert list(losses(board.url, client.hub.token).values()) == [[2.0]]
        run.log_metrics({"loss": 1.0})
    again = run.board(wait=True)
    assert again.id == board.id
    assert client.get(board).selectors == (run.uri,)


def test_a_rank_that_does_not_log_has_no_board(client, tmp_path):
    with aboard.init("cifar10", "mine", root=str(tmp_path), rank=1) as run:
        assert run.board(wait=True) is None
    assert str(tmp_path) not in str([board.selectors for board in client.list(all=True)])
