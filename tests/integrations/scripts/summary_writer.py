"""A script written for another platform: it knows nothing of Aboard."""

import os

import torch
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter(log_dir=os.environ.get("PAI_OUTPUT_TENSORBOARD"))
for step in range(10):
    writer.add_scalar("train/loss", 1 / (step + 1), step)
writer.add_image("train/image", torch.rand(3, 8, 8), 1)
writer.flush()
