"""Fit a small Keras model: of Keras 3, or of the Keras 2 that comes with TensorFlow 2.15."""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np

logger = sys.argv[1]
numbers = np.random.default_rng(0)
inputs = numbers.normal(size=(64, 4)).astype("float32")
targets = inputs.sum(axis=1, keepdims=True)
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])
model.build((None, 4))
model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])

if logger == "callback":
    from aboard.integrations.keras import AboardCallback

    callback = AboardCallback(experiment="keras", batches=2, histograms=2)
elif logger == "tensorboard":
    directory = os.environ["ABOARD_LOGDIR"]
    callback = keras.callbacks.TensorBoard(log_dir=directory, update_freq="epoch")
else:
    callback = keras.callbacks.TensorBoard(log_dir="logs", update_freq="epoch")
history = model.fit(
    inputs,
    targets,
    epochs=4,
    batch_size=16,
    validation_split=0.25,
    callbacks=[callback],
    verbose=0,
)
told = {name: [float(value) for value in values] for name, values in history.history.items()}
if logger == "callback":
    tested = model.evaluate(inputs, targets, callbacks=[callback], return_dict=True, verbose=0)
    told["test"] = {name: float(value) for name, value in tested.items()}
Path("told.json").write_text(json.dumps(told))
