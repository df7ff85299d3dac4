"""Hand TensorFlow's own tensors, of every type that numpy has and has not, to a run."""

import tensorflow as tf

import aboard
from aboard.track.arrays import to_number, to_numpy

for dtype in (tf.float16, tf.float32, tf.float64, tf.bfloat16, tf.int8, tf.uint8, tf.int64):
    assert to_numpy(tf.cast([[1, 2], [3, 4]], dtype)).tolist() == [[1, 2], [3, 4]], dtype
    assert to_number(tf.cast(3, dtype)) == 3, dtype
assert to_numpy(tf.Variable([0.5, 1.5])).tolist() == [0.5, 1.5]
assert to_numpy([tf.constant(1.0), tf.constant(2.0)]).tolist() == [1.0, 2.0]
for wrong in (tf.constant("text"), tf.ragged.constant([[1], [2, 3]])):
    try:
        to_numpy(wrong)
    except (TypeError, ValueError):
        continue
    raise AssertionError(f"{wrong} is no array of numbers")

with aboard.init("tensors") as run:
    run.log_metrics({"loss": tf.constant(0.25), "accuracy": tf.Variable(0.5)}, step=3)
    run.log_image("picture", tf.ones([8, 8, 3]), step=3)
    run.log_histogram("weights", tf.Variable([1.0, 2.0, 3.0]), step=3)
