"""Run another script in two processes of torchrun's agent: `torchrun.py SCRIPT ARGUMENTS`.

The agent is that of the command `torchrun`, and its workers have the same variables. They are
forked, so they need not import PyTorch.
"""

import runpy
import sys
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def work() -> None:
    sys.argv = [str(Path(__file__).with_name(f"{sys.argv[1]}.py")), *sys.argv[2:]]
    runpy.run_path(sys.argv[0], {}, "__main__")


config = LaunchConfig(
    min_nodes=1,
    max_nodes=1,
    nproc_per_node=2,
    run_id="two",
    rdzv_backend="c10d",
    rdzv_endpoint="localhost:0",
    start_method="fork",
    monitor_interval=0.1,
)
elastic_launch(config, work)()
