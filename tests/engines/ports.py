"""Ports for servers that tests start."""

import os
import random
import socket

# Below the ephemeral ports, so that no connection takes a port before its server listens.
_RANGE = range(20_000, 30_000)
_chosen = random.Random(os.getpid())


def free_ports(count: int) -> list[int]:
    """Return different free ports."""
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
