"""Whose record of a run counts, when several attempts at it write one without asking each other.

A machine that comes back sends what an earlier attempt left on it, and by then the run may have
gone on elsewhere, to its end. An attempt that began while the bucket could not be reached knows
nothing of those before it. Takes records as bytes and returns them; reading and sending is left to
`sending`.
"""

from __future__ import annotations

from itertools import pairwise

from aboard.runs.manifest import Attempt, BadManifest, Manifest, State

_OF_THE_LAST = (
    *("state", "ended", "exit_code", "reason", "heartbeat", "heartbeat_secs"),
    *("host", "job", "command", "user", "git_commit", "restart_key", "workspace"),
)
"""What a run's record says of its last attempt."""
_MERGED = ("hparams", "tags", "metrics")


def record_to_send(ours: bytes, theirs: bytes | None) -> bytes | None:
    """Return what the target's record should become, or None where it stays as it is.

    Of an attempt that others followed only its end is told, and only when the last of them has
    ended: until then the record is theirs, and what we add would be lost with their next beat.
    Attempts that do not know of each other are put in the order in which they began.
    """
    if theirs is None:
        return ours
    try:
        old, new = Manifest.from_json(ours), Manifest.from_json(theirs)
    except BadManifest:
        return None if ours == theirs else ours
    if not all(map(_is_same, old.attempts, new.attempts)):
        merged = _merged(old, new).to_json()
        return None if merged == theirs else merged
    if len(new.attempts) <= len(old.attempts):
        return None if ours == theirs else ours
    if not old.attempts or new.state is State.RUNNING:
        return None
    known = new.attempts[len(old.attempts) - 1]
    return new.to_json() if _tell_end(old.attempts[-1], known) else None


def _is_same(one: Attempt, other: Attempt) -> bool:
    return (one.host, one.pid, one.started) == (other.host, other.pid, other.started)


def _tell_end(ours: Attempt, theirs: Attempt) -> bool:
    """Copy how an attempt ended; say whether that changed anything."""
    if ours.state is State.RUNNING:
        return False
    end = ours.state, ours.ended, ours.exit_code, ours.reason
    changed = end != (theirs.state, theirs.ended, theirs.exit_code, theirs.reason)
    theirs.state, theirs.ended, theirs.exit_code, theirs.reason = end
    return changed


def _merged(ours: Manifest, theirs: Manifest) -> Manifest:
    """Put the attempts of two records into theirs; whose attempt is the last has the last word."""
    last = ours.attempts[-1]
    others = [
        one for one in theirs.attempts if not any(_is_same(one, two) for two in ours.attempts)
    ]
    attempts = sorted([*others, *ours.attempts], key=lambda one: one.started)
    for before, after in pairwise(attempts):
        if before.state is State.RUNNING:
            before.state, before.ended = State.KILLED, after.started
            before.reason = "another attempt began"
    for number, attempt in enumerate(attempts, 1):
        attempt.number = number
    is_last = attempts[-1] is last
    for name in _MERGED:
        mine, yours = getattr(ours, name), getattr(theirs, name)
        setattr(theirs, name, {**yours, **mine} if is_last else {**mine, **yours})
    if is_last:
        for name in _OF_THE_LAST:
            setattr(theirs, name, getattr(ours, name))
    theirs.created = min(filter(None, (ours.created, theirs.created)), default=0.0)
    theirs.started, theirs.attempts = attempts[0].started, attempts
    return theirs
