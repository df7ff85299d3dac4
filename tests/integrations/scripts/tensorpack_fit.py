"""Train a small Tensorpack model; with `fails`, until its data runs into an error."""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorpack import (
    AutoResumeTrainConfig,
    Callback,
    DataFromGenerator,
    ModelDesc,
    SimpleTrainer,
    launch_train_with_config,
    logger,
    tfv1,
)
from tensorpack.callbacks import MonitorBase
from tensorpack.input_source import FeedInput

from aboard.integrations.tensorpack import AboardMonitor

tfv1.disable_v2_behavior()
logger.set_logger_dir("tensorpack-log", action="d")


class Model(ModelDesc):
    def inputs(self):
        return [tfv1.TensorSpec([None, 4], tf.float32, "features")]

    def build_graph(self, features):
        weights = tfv1.get_variable("weights", [4, 1])
        cost = tf.reduce_mean(tf.square(features @ weights - 1.0), name="squares")
        tfv1.summary.scalar("cost", cost)
        return cost

    def optimizer(self):
        return tfv1.train.GradientDescentOptimizer(0.05)


class Told(MonitorBase):
    def __init__(self):
        self.seen = []

    def process_scalar(self, name, val):
        self.seen.append([name, self.global_step, float(val)])


class Reports(Callback):
    def _trigger_epoch(self):
        self.trainer.monitors.put_scalar("epoch_squared", self.epoch_num**2)
        self.trainer.monitors.put_image("noise", np.full((8, 8, 3), 100, "uint8"))
        if sys.argv[1] == "fails" and self.epoch_num == 2:
            raise RuntimeError("no such epoch")


def batches():
    numbers = np.random.default_rng(0)
    while True:
        yield [numbers.normal(size=(8, 4)).astype("float32")]


told = Told()
config = AutoResumeTrainConfig(
    model=Model(),
    data=FeedInput(DataFromGenerator(batches)),
    callbacks=[Reports()],
    monitors=[AboardMonitor(experiment="tensorpack"), told],
    steps_per_epoch=5,
    max_epoch=3,
)
try:
    launch_train_with_config(config, SimpleTrainer())
finally:
    Path("told.json").write_text(json.dumps(told.seen))
