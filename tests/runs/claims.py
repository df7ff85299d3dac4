"""Many processes that claim names at the same time: `claims.py ROOT COUNT AT_ONCE THREADS`.

Prints the names, one for each thread of each process. The children open the storage themselves:
what a client of a bucket has running does not survive a fork.
"""

import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

from aboard.runs.catalog import claim_next
from aboard.runs.manifest import Manifest
from aboard.storage import open_storage


def claim_some(root: str, turns: tuple[int, int], names: int, threads: int) -> int:
    try:
        os.read(turns[0], 1)
        storage = open_storage(root)
        with ThreadPoolExecutor(threads) as pool:
            claims = [pool.submit(claim_next, storage, "sweep", Manifest) for _ in range(threads)]
        for claim in claims:
            os.write(names, f"{claim.result().name}\n".encode())
    except Exception:  # noqa: BLE001 - a child of a fork must not come back
        traceback.print_exc()
        return 1
    finally:
        os.write(turns[1], b".")
    return 0


def main(root: str, count: int, at_once: int, threads: int) -> None:
    if "://" in root:
        import aboard.storage.object  # noqa: F401 - once, for all children
    turns = os.pipe()
    names, names_end = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os._exit(claim_some(root, turns, names_end, threads))
        children.append(child)
    os.close(names_end)
    os.write(turns[1], b"." * at_once)
    while claimed := os.read(names, 1 << 16):
        sys.stdout.write(claimed.decode())
    codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
    sys.exit(0 if codes == {0} else 1)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
