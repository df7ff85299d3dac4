"""Train with Hydra; with -m, the members of a sweep."""

import hydra
from hydra.core.config_store import ConfigStore

import aboard

ConfigStore.instance().store(
    name="config", node={"lr": 1.0, "optimizer": {"name": "sgd"}, "token": "none"}
)


@hydra.main(version_base=None, config_path=None, config_name="config")
def train(config):
    with aboard.init("cifar10") as run:
        run.log_metrics({"loss": config.lr}, step=0)


if __name__ == "__main__":
    train()
