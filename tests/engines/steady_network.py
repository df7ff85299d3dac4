"""Start a program without notifications of network changes.

Chromium aborts all requests with ERR_NETWORK_CHANGED when an address is added, and engines add one
for every container. A seccomp filter denies the netlink sockets that report such changes.
"""

import ctypes
import os
import platform
import socket
import struct
import sys
from errno import EACCES

_SYSTEM_CALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # of `socket`
_NO_NEW_PRIVILEGES, _SET_FILTER, _MODE_FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | EACCES
_NUMBER, _ARCHITECTURE, _DOMAIN, _PROTOCOL = 0, 4, 16, 32  # where the kernel puts them
_ROUTES = 0


def listen_to_no_routes() -> None:
    """Deny netlink sockets about addresses and routes to this process and its children."""
    architecture, number = _SYSTEM_CALLS[platform.machine()]
    wanted = [
        (_ARCHITECTURE, architecture),
        (_NUMBER, number),
        (_DOMAIN, int(socket.AF_NETLINK)),
        (_PROTOCOL, _ROUTES),
    ]
    steps = []
    for place, (offset, value) in enumerate(wanted):
        to_the_end = 2 * (len(wanted) - place) - 1
        steps.append(struct.pack("HBBI", _LOAD, 0, 0, offset))
        steps.append(struct.pack("HBBI", _IF_EQUAL, 0, to_the_end, value))
    steps.append(struct.pack("HBBI", _RETURN, 0, 0, _REFUSE))
    steps.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_FILTER, _MODE_FILTER, program, 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "the filter of system calls was refused")


if __name__ == "__main__":
    if sys.platform == "linux" and platform.machine() in _SYSTEM_CALLS:
        listen_to_no_routes()
    os.execv(sys.argv[1], sys.argv[1:])
