"""TensorBoard's frontend over the index: many boards in one process."""
