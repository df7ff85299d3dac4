"""Train and evaluate a TF Estimator, into the run or with a hook that logs to it."""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import aboard
from aboard.integrations.estimator import AboardHook, run_config

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)


def model_fn(features, labels, mode, params):
    weights = tf.compat.v1.get_variable("weights", [4, 1])
    guesses = tf.matmul(features, weights)
    loss = tf.reduce_mean(tf.square(guesses - labels), name="squares")
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(params["lr"])
    step = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def input_fn():
    features = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    return tf.data.Dataset.from_tensors((features, features.sum(1, keepdims=True))).repeat(100)


class Losses(tf.estimator.SessionRunHook):
    def __init__(self):
        self.seen = []

    def before_run(self, context):
        return tf.estimator.SessionRunArgs("squares:0")

    def after_run(self, context, values):
        self.seen.append(float(values.results))


class Fails(tf.estimator.SessionRunHook):
    def after_run(self, context, values):
        raise RuntimeError("no more")


losses = Losses()
if sys.argv[1] == "hook":
    estimator = tf.estimator.Estimator(model_fn, model_dir="model", params={"lr": 0.05})
    with contextlib.suppress(RuntimeError):
        failing = [AboardHook(experiment="estimator", name="failed"), Fails()]
        estimator.train(input_fn, steps=20, hooks=failing)
    hook = AboardHook(every=1, tensors={"squares": "squares:0"}, experiment="estimator")
    estimator.train(input_fn, steps=20, hooks=[hook, losses])
    evaluated = estimator.evaluate(input_fn, steps=1)
else:
    with aboard.init("estimator") as run:
        config = run_config(run, save_summary_steps=1, log_step_count_steps=5)
        estimator = tf.estimator.Estimator(model_fn, config=config, params={"lr": 0.05})
        estimator.train(input_fn, steps=20, hooks=[losses])
        evaluated = estimator.evaluate(input_fn, steps=1)
told = {"losses": losses.seen, "evaluated": float(evaluated["loss"])}
Path("told.json").write_text(json.dumps(told))
