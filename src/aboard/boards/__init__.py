"""Boards as the hub stores them: the model, the registry, the lifecycle, limits and accounts."""
