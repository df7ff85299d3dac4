"""Ports for servers that tests start."""

import os
import random
import socket

# Below the ports that systems hand out, so that no connection takes one before its server does.
_RANGE = range(20_000, 30_000)
_chosen = random.Random(os.getpid())


def free_ports(count: int) -> list[int]:
    """Return ports that are free, and that differ."""
    found: set[int] = set()
    while len(found) < count:
        port = _chosen.choice(_RANGE)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.add(port)
    return sorted(found)


def free_port() -> int:
    return free_ports(1)[0]
