"""The first process of a task in an indexed Job: finds the task's number, then runs the task.

    python -P -m aboard.executors.kubernetes.task FILE -- COMMAND...

Kubernetes counts the pods of a Job from 0. The file lists the numbers of the tasks in that order,
and those that were cancelled before they began, when there was no pod to delete.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_CANCELLED = 143  # as after SIGTERM


def main() -> None:
    _, file, _, *command = sys.argv
    document = json.loads(Path(file).read_bytes())
    number = document["numbers"][int(os.environ["JOB_COMPLETION_INDEX"])]
    if number in document["cancelled"]:
        print(f"aboard: task {number} was cancelled before it began.", file=sys.stderr)  # noqa: T201
        sys.exit(_CANCELLED)
    os.execvp(command[0], [*command, str(number)])  # noqa: S606


if __name__ == "__main__":
    main()
