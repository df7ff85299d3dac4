"""The hub's metrics, as Prometheus reads them."""

import re

from prometheus_client.parser import text_string_to_metric_families

from aboard.hub.pages import METRICS_TYPE
from tests.hub.hubs import create, points
from tests.waiting import until


def test_metrics_count_boards_and_requests(hub):
    with hub.client("vera") as client, hub.client("max") as owner:
        board = create(owner, "cifar10")["id"]
        points(owner, board)
        owner.post(f"/api/v1/boards/{create(owner, 'mnist')['id']}/stop")
        counted = 'aboard_requests_total{route="board",status="2xx"} 1'
        until(lambda: counted in client.get("/metrics").text)
        response = client.get("/metrics")
        text = response.text
    assert response.headers["content-type"] == METRICS_TYPE
    assert {one.name for one in text_string_to_metric_families(text)} >= {"aboard_boards"}
    for line in text.splitlines():
        assert line.startswith("# ") or re.fullmatch(r"[a-z_]+(\{[^}]*\})? [0-9.e+-]+", line), line
    assert 'aboard_boards{state="running"} 1' in text
    assert 'aboard_boards{state="stopped"} 1' in text
    assert "aboard_index_lag_seconds" in text
