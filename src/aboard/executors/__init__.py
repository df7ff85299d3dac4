"""Where isolated boards run: one contract, and a module for each place that keeps it."""

from aboard.executors.base import (
    Address,
    Executor,
    ExecutorError,
    Handle,
    Spec,
    State,
    Status,
)

__all__ = ["Address", "Executor", "ExecutorError", "Handle", "Spec", "State", "Status"]
