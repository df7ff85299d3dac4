"""A bucket behind a network that delays, repeats, loses and reorders writes, in memory.

A write that the client gave up may be carried out at any later time, and one that was answered may
be carried out again. The bucket checks conditions as a real one of its kind does.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Literal

from aboard.storage import (
    AlreadyExists,
    Changed,
    Entry,
    NoSuchPath,
    PermissionDenied,
    Storage,
    Unreachable,
    Unsupported,
)

Kind = Literal["conditional", "create-only", "deaf", "refusing", "write-only"]
"""Conditions are checked; only "if there is none" is; all are ignored; all are refused; all are
checked, and nothing may be read or listed."""
KINDS: tuple[Kind, ...] = ("conditional", "create-only", "deaf", "refusing", "write-only")
FATES = {
    "done": 60,
    "lost": 6,  # never carried out, never answered
    "done, no answer": 8,
    "late": 14,  # carried out after the client gave up
    "done, and again later": 8,
    "done twice": 4,  # the client's library repeats a request whose answer was lost
}


class Bucket(Storage):
    uri = "s3://simulated/run"

    def __init__(self, kind: Kind, chance: random.Random) -> None:
        self.kind = kind
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.late: list[Callable[[], None]] = []
        self.is_calm = False  # every request is carried out at once
        self._chance = chance
        self._generation = 0

    # What the network does.

    def carry_out_late(self) -> None:
        """Carry out one of the writes that are under way."""
        self.late.pop(self._chance.randrange(len(self.late)))()

    def _send(self, write: Callable[[], str]) -> str:
        def at_last() -> None:
            with contextlib.suppress(AlreadyExists, Changed):  # it was overtaken
                write()

        while self.late and not self.is_calm and self._chance.random() < 0.2:
            self.carry_out_late()
        fate = "done"
        if not self.is_calm:
            (fate,) = self._chance.choices(list(FATES), list(FATES.values()))
        if fate in ("late", "done, and again later"):
            self.late.append(at_last)
        if fate == "done twice":
            at_last()
        if fate == "done, no answer":
            at_last()
        if fate in ("lost", "late", "done, no answer"):
            raise Unreachable(self.uri, "no answer", "")
        return write()

    # What the bucket does.

    def _put(self, name: str, data: bytes) -> str:
        self._generation += 1
        self.objects[name] = (self._generation, data)
        return str(self._generation)

    def list(self, prefix="", *, containing="", on_error=None) -> Iterator[Entry]:
        self._answer()
        found = sorted(self.objects.items())
        return iter([Entry(name, len(data), str(number)) for name, (number, data) in found])

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return self._found(name)[1][start:end]

    def version(self, name: str) -> str:
        return str(self._found(name)[0])

    def write(self, name: str, data: bytes) -> None:
        self._send(lambda: self._put(name, data))

    def create_new(self, name: str, data: bytes) -> None:
        def create() -> str:
            if self.kind != "deaf" and name in self.objects:
                raise AlreadyExists(name, "it exists", "")
            return self._put(name, data)

        if self.kind == "refusing":
            raise Unsupported(self.uri, "no conditions", "")
        self._send(create)

    def replace(self, name: str, data: bytes, version: str) -> str:
        def replace() -> str:
            held = self.objects.get(name)
            if self.kind != "deaf" and (held is None or str(held[0]) != version):
                raise Changed(name, "changed", "")
            return self._put(name, data)

        if self.kind in ("create-only", "refusing"):
            raise Unsupported(self.uri, "no conditions", "")
        return self._send(replace)

    def has_conditions(self, name: str, data: bytes) -> bool:
        try:
            self.replace(name, data, "no version")
        except Changed:
            return True
        except Unsupported:
            pass
        return False

    def delete(self, name: str) -> None:
        self._found(name)
        del self.objects[name]

    def _found(self, name: str) -> tuple[int, bytes]:
        self._answer()
        if name not in self.objects:
            raise NoSuchPath(name, "there is none", "")
        return self.objects[name]

    def _answer(self) -> None:
        if self.kind == "write-only":
            raise PermissionDenied(self.uri, "no right to read", "")
        if not self.is_calm and self._chance.random() < 0.05:
            raise Unreachable(self.uri, "no answer", "")
