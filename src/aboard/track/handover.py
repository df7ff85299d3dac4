"""Whose record of a run counts, when one attempt's is sent after the next attempt wrote its own.

A machine that comes back sends what an earlier attempt left on it, and by then the run may have
gone on elsewhere, to its end. Takes records as bytes and returns them; reading and sending is left
to `sending`.
"""

from __future__ import annotations

from aboard.runs.manifest import Attempt, BadManifest, Manifest, State


def record_to_send(ours: bytes, theirs: bytes | None) -> bytes | None:
    """Return what the target's record should become, or None where it stays as it is.

    Of an attempt that others followed only its end is told, and only when the last of them has
    ended: until then the record is theirs, and what we add would be lost with their next beat.
    """
    if theirs is None:
        return ours
    if not is_overtaken(ours, theirs):
        return None if ours == theirs else ours
    old, new = Manifest.from_json(ours), Manifest.from_json(theirs)
    if not old.attempts or new.state is State.RUNNING:
        return None
    known = next((one for one in new.attempts if one.number == old.attempts[-1].number), None)
    if known is None or not _tell_end(old.attempts[-1], known):
        return None
    return new.to_json()


def is_overtaken(ours: bytes, theirs: bytes) -> bool:
    """Say whether their record knows of later attempts than ours."""
    try:
        old, new = Manifest.from_json(ours), Manifest.from_json(theirs)
    except BadManifest:
        return False
    return len(new.attempts) > len(old.attempts)


def _tell_end(ours: Attempt, theirs: Attempt) -> bool:
    """Copy how an attempt ended; say whether that changed anything."""
    if ours.state is State.RUNNING or ours.pid != theirs.pid or ours.host != theirs.host:
        return False
    end = ours.state, ours.ended, ours.exit_code, ours.reason
    changed = end != (theirs.state, theirs.ended, theirs.exit_code, theirs.reason)
    theirs.state, theirs.ended, theirs.exit_code, theirs.reason = end
    return changed
