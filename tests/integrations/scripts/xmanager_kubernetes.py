"""Add a board on Kubernetes to an experiment of XManager: IMAGE SECONDS."""

import sys

from absl import flags
from xmanager import xm_local

from aboard.integrations.xmanager import add_board

if __name__ == "__main__":
    flags.FLAGS(sys.argv[:1])
    with xm_local.create_experiment("cifar10") as experiment:
        link = add_board(
            experiment,
            "/tmp",
            6006,
            timeout_secs=int(sys.argv[2]),
            executor=xm_local.Kubernetes(),
            image=sys.argv[1],
        )
    assert link is None
