"""The hub: boards of many users behind one authenticated address."""

from aboard.system import require

require("aiohttp", "argon2", "fastapi", "orjson", "prometheus_client", "pydantic", "sqlalchemy")
