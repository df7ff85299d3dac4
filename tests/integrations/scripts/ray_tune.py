"""Train two trials of Ray Tune, the second of which fails once, then a task of a plain Ray job."""

import json
from pathlib import Path

import ray
from ray import tune

import aboard

STEPS = 10


def train(config):
    with aboard.init("cifar10", hparams=config) as run:
        record = json.loads(Path(run.uri, "run.json").read_text())
        start = STEPS // 2 if len(record["attempts"]) > 1 else 0
        for step in range(start, STEPS):
            run.log_metrics({"loss": config["lr"] * step}, step=step)
            if config["lr"] == 0.01 and start == 0 and step == STEPS // 2 - 1:
                raise RuntimeError("lost")
    tune.report({"loss": 0.0})


@ray.remote
def task():
    with aboard.init("plain") as run:
        run.log_metrics({"loss": 1.0}, step=0)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([0.1, 0.01])},
        run_config=tune.RunConfig(
            name="sweep", verbose=0, failure_config=tune.FailureConfig(max_failures=1)
        ),
    )
    results = tuner.fit()
    assert not results.errors
    ray.get(task.remote())
    trials = [one.metrics["trial_id"] for one in results]
    print(json.dumps({"trials": trials, "job": ray.get_runtime_context().get_job_id()}))
