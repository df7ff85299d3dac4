"""How findings are worded, and what they promise."""

from aboard.doctor import rules
from aboard.doctor.rules import requests, slow_index


def test_the_estimate_is_of_what_a_board_does(monkeypatch):
    start = "A board in use will make"
    end = "list requests an hour, and one read for each file that grew; it stops"
    found = requests("s3://b", {}, 2)
    assert found.advice == f"{start} 120 to 1,440 {end} 60 s after the last viewer has left."
    monkeypatch.setattr(rules, "REMOTE_SECONDS", 10.0)
    monkeypatch.setattr(rules, "LONGEST_SECONDS", 30.0)
    monkeypatch.setattr(rules, "UNWATCHED_SECONDS", 90.0)
    found = requests("s3://b", {}, 2)
    assert found.advice == f"{start} 240 to 720 {end} 90 s after the last viewer has left."


def test_hours_of_requests_are_told_apart():
    found = requests("s3://b", {1: (10, 100), 2: (1500, 5000)}, 1)
    assert found.what == (
        "1,510 requests and 5,100 bytes in the last 24 h, at most 1,500 requests in an hour"
    )


def test_a_slow_index():
    assert slow_index("/cache/index.db", 0.001) == []
    (found,) = slow_index("/cache/index.db", 0.2, "nfs4")
    assert found.severity == "warning"
    assert found.what == "a small write to the index takes 200 ms; on a local disk a few ms"
    assert found.where == ("/cache/index.db (nfs4)",)
    assert found.advice == "Set ABOARD_CACHE to a directory on a local disk."
