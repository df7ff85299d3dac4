"""Who may call what: one entry for every route of the hub.

A route that is not in the table is answered to nobody. What a role may do with which board is
left to `permissions`; here is which of its actions a route is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from aboard.hub.permissions import Action

API = "/api/v1"


class Open(StrEnum):
    """Routes that are no action of their own."""

    ANYBODY = "anybody"
    """Needs no secret, and tells nothing that would."""
    USERS = "users"
    """Whoever is known; it is about himself, or tells only what everybody may know."""
    SELF = "self"
    """A user about himself, and whoever manages users about everybody."""


Rule = Action | Open

RULES: Mapping[tuple[str, str], Rule] = MappingProxyType(
    {
        ("GET", "/"): Open.USERS,
        ("GET", "/healthz"): Open.ANYBODY,
        ("GET", "/readyz"): Open.ANYBODY,
        ("GET", "/metrics"): Open.USERS,
        ("GET", "/openapi.json"): Open.USERS,
        ("GET", "/login"): Open.ANYBODY,
        ("POST", "/login"): Open.ANYBODY,
        ("POST", "/logout"): Open.USERS,
        ("GET", "/s/{secret}"): Open.ANYBODY,
        ("GET", f"{API}/me"): Open.USERS,
        ("POST", f"{API}/login"): Open.ANYBODY,
        ("POST", f"{API}/logout"): Open.USERS,
        ("GET", f"{API}/boards"): Open.USERS,
        ("POST", f"{API}/boards"): Action.CREATE,
        ("GET", f"{API}/boards/{{ref}}"): Action.SEE,
        ("PATCH", f"{API}/boards/{{ref}}"): Action.CHANGE,
        ("DELETE", f"{API}/boards/{{ref}}"): Action.DELETE,
        ("POST", f"{API}/boards/{{ref}}/stop"): Action.STOP,
        ("POST", f"{API}/boards/{{ref}}/restart"): Action.RESTART,
        ("POST", f"{API}/boards/{{ref}}/selection"): Action.CHANGE,
        ("GET", f"{API}/boards/{{ref}}/history"): Action.SEE,
        ("GET", f"{API}/boards/{{ref}}/logs"): Action.SEE_LOGS,
        ("POST", f"{API}/boards/{{ref}}/link"): Action.SEE,
        ("GET", f"{API}/boards/{{ref}}/shares"): Action.SHARE,
        ("POST", f"{API}/boards/{{ref}}/shares"): Action.SHARE,
        ("DELETE", f"{API}/boards/{{ref}}/shares/{{share}}"): Action.SHARE,
        ("GET", f"{API}/runs"): Action.SEE_RUNS,
        ("GET", f"{API}/roots"): Action.SEE_RUNS,
        ("GET", f"{API}/users"): Action.MANAGE_USERS,
        ("POST", f"{API}/users"): Action.MANAGE_USERS,
        ("PATCH", f"{API}/users/{{name}}"): Action.MANAGE_USERS,
        ("DELETE", f"{API}/users/{{name}}"): Action.MANAGE_USERS,
        ("PUT", f"{API}/users/{{name}}/password"): Open.SELF,
        ("GET", f"{API}/tokens"): Action.OWN_TOKENS,
        ("POST", f"{API}/tokens"): Action.OWN_TOKENS,
        ("DELETE", f"{API}/tokens/{{token}}"): Action.OWN_TOKENS,
    }
)
