"""TensorBoard's frontend over the index: many boards in one process."""

from aboard.system import require

require("a2wsgi", "orjson", "starlette", "tensorboard", "watchfiles")
