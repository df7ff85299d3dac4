"""Fit and test a small LightningModule, under either of Lightning's names."""

import json
import sys
import warnings
from pathlib import Path

import torch

warnings.simplefilter("ignore")
package, how = sys.argv[1:]
if package == "lightning":
    import lightning.pytorch as lightning
else:
    import pytorch_lightning as lightning

from aboard.integrations.lightning import AboardLogger  # noqa: E402


class Regression(lightning.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)
        self.example_input_array = torch.zeros(1, 4)
        self.seen: list[float] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch)

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        if how == "fails" and number == 3:
            raise RuntimeError("no such batch")
        loss = (self(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("train/loss", loss)
        self.seen.append(loss.item())
        return loss

    def test_step(self, batch: torch.Tensor, number: int) -> None:
        self.log("test/size", float(len(batch)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


lightning.seed_everything(0, verbose=False)
batches = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4)
logger = AboardLogger(experiment="regression")
devices = 2 if how == "two" else 1
trainer = lightning.Trainer(
    max_epochs=1,
    logger=logger,
    log_every_n_steps=1,
    accelerator="cpu",
    devices=devices,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Regression(0.05)
trainer.fit(model, batches)
if how == "names":
    print(logger.name, logger.version, logger.save_dir, logger.log_dir, file=sys.stderr)
if how == "tests":
    logger.log_graph(model)
    trainer.test(model, batches, verbose=False)
Path(f"told-{trainer.global_rank}.json").write_text(json.dumps(model.seen))
