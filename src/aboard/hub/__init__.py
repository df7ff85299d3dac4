"""The hub: boards of many users behind one authenticated address."""

from aboard.requirements import require

require("aiohttp", "argon2", "fastapi", "orjson", "prometheus_client", "pydantic", "sqlalchemy")
