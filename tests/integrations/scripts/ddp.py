"""Train with two processes of DistributedDataParallel, twice; each saves the losses it saw."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed

import aboard
from aboard.integrations.torch import watch

steps = int(sys.argv[1])
rank = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
meeting = Path("meeting").absolute()
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
torch.manual_seed(rank)
for ranks in ("first", "all"):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.MSELoss()
    seen = []
    with (
        aboard.init(ranks, ranks=ranks, hparams={"lr": 0.1}) as run,
        watch(model, optimizer, criterion),
    ):
        for step in range(steps):
            batch = torch.randn(8, 4)
            loss = criterion(model(batch), batch.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log_metrics({"rank": rank}, step=step)
            seen.append(loss.item())
    report = {"losses": seen, "active": run.active}
    Path(f"{ranks}-{rank}.json").write_text(json.dumps(report))
distributed.destroy_process_group()
