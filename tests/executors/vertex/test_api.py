"""The calls of Vertex: what is repeated, when it is given up, and what users read then."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from aboard.executors.base import ExecutorError
from aboard.executors.vertex import api as vertex_api
from aboard.executors.vertex.api import Location, Vertex, VertexError
from tests.engines.fake_vertex import LOCATION, PARENT, PROJECT, FakeVertex, Fault


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vertex_api, "_FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(vertex_api, "_OPERATION_SECONDS", 0.01)


@pytest.fixture
def client(vertex: FakeVertex) -> Iterator[Vertex]:
    made = Vertex(Location(PROJECT, LOCATION, vertex.url))
    yield made
    made.close()


def test_a_tensorboard_is_created_once(client: Vertex, vertex: FakeVertex) -> None:
    first = client.tensorboard('the "team"')
    assert first["displayName"] == 'the "team"'
    vertex.tensorboards[first["name"]]["displayName"] = "team"
    assert client.tensorboard("team")["name"] == first["name"]
    assert len(vertex.tensorboards) == 1
    assert client.tensorboard("other", create=False) == {}


def test_all_pages_are_read(client: Vertex, vertex: FakeVertex) -> None:
    board = client.tensorboard("team")["name"]
    vertex.experiments[f"{board}/experiments/e"] = {}
    names = {f"{board}/experiments/e/runs/r{one}": {"name": str(one)} for one in range(250)}
    vertex.runs |= names
    listed = list(client.list(f"{board}/experiments/e/runs", "tensorboardRuns"))
    assert [one["name"] for one in listed] == [str(one) for one in range(250)]


@pytest.mark.parametrize("retry_after", ["", "0"])
def test_what_exceeds_a_quota_is_repeated(
    client: Vertex, vertex: FakeVertex, retry_after: str
) -> None:
    vertex.faults.append(Fault("tensorboards", 429, times=5, retry_after=retry_after))
    client.tensorboard("team")
    assert [one.status for one in vertex.recorded[:6]] == [429] * 5 + [200]
    assert len(vertex.tensorboards) == 1


def test_vertex_says_how_long_to_wait(vertex: FakeVertex) -> None:
    waited: list[float | None] = []

    class Closed(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return False

    client = Vertex(Location(PROJECT, LOCATION, vertex.url), closed=Closed())
    vertex.faults.append(Fault("tensorboards", 429, retry_after="17"))
    client.tensorboard("team")
    assert 17.0 in waited


def test_a_quota_that_stays_exceeded_is_one_clear_line(vertex: FakeVertex) -> None:
    vertex.faults.append(Fault("customJobs", 429, "Quota for a2 is exceeded.", times=99))
    client = Vertex(Location(PROJECT, LOCATION, vertex.url), patience=0.05)
    with pytest.raises(VertexError) as caught:
        client.post(f"{PARENT}/customJobs", {})
    assert str(caught.value) == (
        "Vertex, project demo in us-central1: quota exceeded: Quota for a2 is exceeded."
        " Try later, or ask for more quota."
    )
    assert caught.value.refused


def test_only_what_may_be_repeated_is(client: Vertex, vertex: FakeVertex) -> None:
    vertex.faults += [Fault("tensorboards", 503, times=2), Fault("customJobs", 503)]
    assert list(client.list(f"{PARENT}/tensorboards", "tensorboards")) == []
    with pytest.raises(VertexError, match="failed with status 503: a fault") as caught:
        client.post(f"{PARENT}/customJobs", {})
    assert not caught.value.refused
    assert [one.status for one in vertex.recorded] == [503, 503, 200, 503]


def test_a_lost_connection_is_not_a_refusal(client: Vertex, vertex: FakeVertex) -> None:
    vertex.faults.append(Fault("customJobs", drops=True))
    with pytest.raises(VertexError, match="Vertex does not answer at http://127") as caught:
        client.post(f"{PARENT}/customJobs", {})
    assert not caught.value.refused


def test_a_slow_answer_ends_in_time(vertex: FakeVertex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vertex_api, "_READ_SECONDS", 0.2)
    vertex.faults.append(Fault("tensorboards", delay=2.0, times=99))
    client = Vertex(Location(PROJECT, LOCATION, vertex.url), patience=0.1)
    with pytest.raises(VertexError, match="Vertex does not answer"):
        client.get(f"{PARENT}/tensorboards")


def test_an_expired_token_is_renewed(client: Vertex, vertex: FakeVertex) -> None:
    client.get(f"{PARENT}/tensorboards")
    vertex.expire_tokens()
    client.get(f"{PARENT}/tensorboards")
    assert vertex.logins == 2


def test_expired_credentials_are_one_clear_line(client: Vertex, vertex: FakeVertex) -> None:
    client.get(f"{PARENT}/tensorboards")
    vertex.expire_tokens()
    vertex.is_revoked = True
    with pytest.raises(VertexError) as caught:
        client.get(f"{PARENT}/tensorboards")
    line = str(caught.value)
    assert line.startswith("the Google credentials have expired or are not valid: ")
    assert line.endswith("Run: gcloud auth application-default login")
    assert "\n" not in line
    assert caught.value.refused


def test_no_credentials_are_one_clear_line(
    environment: pytest.MonkeyPatch, vertex: FakeVertex
) -> None:
    environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    client = Vertex(Location(PROJECT, LOCATION, vertex.url))
    with pytest.raises(VertexError, match="no usable Google credentials"):
        client.get(f"{PARENT}/tensorboards")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("tensorboards", 403, "Denied.", times=9), "permission denied: Denied. Ask for the"),
        (Fault("tensorboards", 404, "Gone.", times=9), "not found: Gone. Check the project"),
        (Fault("tensorboards", 400, "Bad.", times=9), "the request was rejected: Bad."),
    ],
)
def test_refusals_have_the_words_of_vertex(
    client: Vertex, vertex: FakeVertex, fault: Fault, said: str
) -> None:
    vertex.faults.append(fault)
    with pytest.raises(VertexError, match=re.escape(said)) as caught:
        client.get(f"{PARENT}/tensorboards")
    assert caught.value.refused


def test_another_project_is_refused(vertex: FakeVertex) -> None:
    client = Vertex(Location("nobodys", LOCATION, vertex.url))
    with pytest.raises(VertexError, match="project nobodys in us-central1: permission denied"):
        client.tensorboard("team")


def test_a_client_that_is_closed_does_not_wait(vertex: FakeVertex) -> None:
    vertex.faults.append(Fault("tensorboards", 429, times=99, retry_after="30"))
    waited: list[float | None] = []

    class Closed(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            self.set()
            return True

    client = Vertex(Location(PROJECT, LOCATION, vertex.url), closed=Closed())
    with pytest.raises(VertexError, match="quota exceeded"):
        client.get(f"{PARENT}/tensorboards")
    assert waited == [30.0]  # only by what its end interrupts
    assert [one.status for one in vertex.recorded] == [429]


def test_without_the_extra_the_error_names_it(
    vertex: FakeVertex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    client = Vertex(Location(PROJECT, LOCATION, vertex.url))
    with pytest.raises(ExecutorError, match=re.escape("pip install 'aboard[vertex]'")):
        client.get(f"{PARENT}/tensorboards")


def test_importing_it_imports_no_client() -> None:
    script = (
        "import sys, aboard.executors.vertex.engine;"
        "print([one for one in ('google.auth', 'requests') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
