"""A fork server whose TensorBoard misbehaves in the way that the path of a request names."""

import json
import logging
import os
import re
import sys
import time

from aboard.tensorboard import worker

HOLDS_THE_INTERPRETER = re.compile("(a|a)*$")
PROGRAM = "from tests.engines.sick_tensorboard import main; main({})"


def application(*_):
    def app(environ, start_response):
        name, _, argument = environ["PATH_INFO"].rpartition("/")[2].partition(":")
        body = b"".join(getattr(Sick, name)(environ, argument))
        start_response("200 OK", [("Content-Type", "text/plain"), ("X-Odd", "é")])
        return [body[start : start + 100_000] for start in range(0, len(body), 100_000)]

    return app


class Sick:
    @staticmethod
    def echo(environ, _):
        yield json.dumps(
            {
                "pid": os.getpid(),
                "method": environ["REQUEST_METHOD"],
                "query": environ["QUERY_STRING"],
                "body": environ["wsgi.input"].read().decode(),
                "board": environ["HTTP_TENSORBOARD_EXPERIMENT_ID"],
                "nice": os.getpriority(os.PRIO_PROCESS, 0),
                "now": time.monotonic(),
            }
        ).encode()

    @staticmethod
    def spin(environ, argument):
        HOLDS_THE_INTERPRETER.match("a" * 60 + "!")
        yield b"never"

    @staticmethod
    def sleep(environ, argument):
        time.sleep(float(argument))
        yield b"awake"

    @staticmethod
    def allocate(environ, argument):
        yield bytes(int(argument) << 20)[:1]

    @staticmethod
    def large(environ, argument):
        yield b"x" * (int(argument) << 20)

    @staticmethod
    def end(environ, argument):
        os._exit(3)

    @staticmethod
    def fail(environ, argument):
        raise RuntimeError("a plugin fails")

    @staticmethod
    def warn(environ, argument):
        logging.getLogger("plugin.of.others").warning("a plugin warns")
        yield b""

    @staticmethod
    def write(environ, argument):
        """Write to the open sockets of the process, as a compromised plugin could."""
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\x80\x04garbage" * 10)
            except OSError:
                continue
        time.sleep(60)
        yield b""


def main(descriptor):
    worker._tensorboard = application
    sys.setrecursionlimit(1000)
    worker.main(descriptor)
