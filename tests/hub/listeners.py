"""Clients of the change stream, and what they hear of."""

import json
import threading

import httpx

from aboard.hub import events as events_module
from tests.hub.hubs import log_run
from tests.waiting import until

PATH = "/api/v1/events"


def parse(block):
    fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
    return {"event": fields["event"], "cursor": fields["id"], **json.loads(fields["data"])}


def put_run(root, label, **record):
    """Put a run with its record below a root at once."""
    shelf = log_run(root.parent / "shelf", label, [1.0], **record)
    (root / label).parent.mkdir(parents=True, exist_ok=True)
    shelf.rename(root / label)


class Ears:
    """A client that listens in a thread, over HTTP."""

    def __init__(self, client, params, headers):
        self.heard, self.comments, self.status = [], 0, None
        self.ready, self.ended = threading.Event(), threading.Event()
        self._arguments = client, params, headers
        self._leave = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        client, params, headers = self._arguments
        text = ""
        try:
            with client.stream("GET", PATH, params=params, headers=headers) as answer:
                self.status = answer.status_code
                for piece in answer.iter_text():
                    *blocks, text = (text + piece).split("\n\n")
                    for block in blocks:
                        if "data: " in block:
                            self.heard.append(parse(block))
                            self.ready.set()
                        else:
                            self.comments += 1
                    if self._leave.is_set():
                        return
        except httpx.HTTPError:
            pass
        finally:
            self.ended.set()

    def leave(self):
        self._leave.set()

    def all(self, name):
        return [one for one in self.heard if one["event"] == name]

    def until(self, name, **fields):
        """Wait for an event."""
        return until(
            lambda: next((one for one in self.all(name) if fields.items() <= one.items()), None)
        )


def events_of_many(hub, count):
    """Publish events as large as they get."""
    event = events_module.Event(events_module.Kind.RUN, "run", b'{"x": "%s"}' % (b"x" * 16_000))
    hub.hub.events._publish([event] * count, wake=False)
