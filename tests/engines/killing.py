"""A process that ends after some lines of the code that a test is about."""

import math
import os
import signal
import sys
import threading


def _kill_process():
    os.kill(os.getpid(), signal.SIGKILL)


def tracer(left, is_counted, end=_kill_process):
    """Return what to trace a thread with.

    Args:
        left: a list with the number of lines until the process dies; may be changed meanwhile.
        is_counted: says whether the lines of some code count.
        end: how it dies; an exception stands for a kill in the process of the test.
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
    """Kill this process after some lines, in any of its threads.

    Args:
        lines: how many; a negative number counts those that follow the signal SIGUSR1.
        parts: the lines of files count whose path contains one of these.
        functions: with names, only the lines of functions with these names count.
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
