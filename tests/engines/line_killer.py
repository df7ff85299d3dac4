"""Kills a process after a number of executed lines of the tested code."""

import math
import os
import signal
import sys
import threading


def _kill_process():
    os.kill(os.getpid(), signal.SIGKILL)


def tracer(left, is_counted, end=_kill_process):
    """Return a trace function for a thread.

    Args:
        left: a list with the number of lines until the kill; it may be changed at any time.
        is_counted: whether the lines of a code object count.
        end: kills the process; or raises an exception instead, in the process of the test.
    """

    def count(frame, event, argument):
        left[0] -= 1
        if left[0] <= 0:
            end()
        return count

    def trace(frame, event, argument):
        return count if is_counted(frame.f_code) else None

    return trace


def die_after(lines, parts, functions=()):
    """Kill this process after a number of lines, in any of its threads.

    Args:
        lines: the number of lines; if negative, counting starts at the signal SIGUSR1.
        parts: lines count in files whose path contains one of these.
        functions: if given, lines count only in functions with these names.
    """
    left = [lines if lines > 0 else math.inf]

    def begin(number, frame):
        left[0] = -lines

    def is_counted(code):
        ours = any(part in code.co_filename for part in parts)
        return ours and (not functions or code.co_name in functions)

    trace = tracer(left, is_counted)
    signal.signal(signal.SIGUSR1, begin)
    threading.settrace(trace)
    sys.settrace(trace)
