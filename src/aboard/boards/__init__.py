"""The hub's boards and accounts: model, registry, lifecycle, limits and database."""
