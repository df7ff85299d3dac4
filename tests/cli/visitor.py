"""A client of a command that serves, and the points that it gets."""

from contextlib import contextmanager

import httpx
import orjson

from tests.hub.hubs import QUICK


@contextmanager
def visitor(line):
    """Come in with the one-time key of a JSON line."""
    url = orjson.loads(line)["url"]
    with httpx.Client(follow_redirects=True, **QUICK) as client:
        page = client.get(url)
        assert page.status_code == 200
        assert "key=" not in str(page.url)
        client.base_url = str(page.url)
        yield client


def points(client, tag="loss"):
    asked = orjson.dumps([{"plugin": "scalars", "tag": tag}]).decode()
    answer = client.post("data/plugin/timeseries/timeSeries", data={"requests": asked}).json()
    return {
        run: [(point["step"], point["value"]) for point in series]
        for run, series in answer[0]["runToSeries"].items()
    }
