"""Saved views of the table of runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from aboard.boards.accounts import LONGEST_QUERY, View, no_such_view
from aboard.boards.model import LONGEST_NAME, Visibility, is_plain
from aboard.hub.api import Name, RequestDocument, TheHub, TheUser, api_router
from aboard.hub.permissions import Action, require
from aboard.runs.manifest import format_time

router = api_router("views")
ViewName = Annotated[str, Query(min_length=1, max_length=LONGEST_NAME)]
UserName = Annotated[str | None, Query(description="Yours by default.", max_length=LONGEST_NAME)]


class NewView(RequestDocument):
    """A view to save; it replaces your view with the same name."""

    name: Annotated[Name, Field(min_length=1, examples=["best of cifar10"])]
    query: str = Field(
        max_length=LONGEST_QUERY,
        description="The query of the page's address.",
        examples=["where=state+%3D%3D+%22completed%22&sort=-created"],
    )
    visibility: Visibility = Visibility.PRIVATE


class ViewDocument(BaseModel):
    """A saved view."""

    name: str
    owner: str
    query: str
    visibility: Visibility
    changed: str

    @classmethod
    def of(cls, view: View) -> ViewDocument:
        return cls(
            name=view.name,
            owner=view.owner,
            query=view.query,
            visibility=view.visibility,
            changed=format_time(view.changed) or "",
        )


class ViewList(BaseModel):
    """Your views and the team's, by name."""

    views: list[ViewDocument]


@router.get("/views")
def list_views(hub: TheHub, user: TheUser) -> ViewList:
    """List your saved views and the team's."""
    found = hub.registry.views.seen_by(user.name)
    return ViewList(views=[ViewDocument.of(view) for view in found])


@router.put("/views")
def save_view(hub: TheHub, user: TheUser, body: NewView) -> ViewDocument:
    """Save a view; it replaces your view with the same name."""
    if body.visibility is Visibility.TEAM:
        require(user, Action.SHARE_VIEWS)
    saved = hub.registry.views.save(user.name, body.name, body.query, body.visibility)
    return ViewDocument.of(saved)


@router.delete("/views", status_code=204, response_model=None)
def delete_view(hub: TheHub, user: TheUser, name: ViewName, owner: UserName = None) -> None:
    """Delete one of your views or, as an administrator, a shared view of another user."""
    is_mine = owner in {None, user.name}
    if not is_mine:
        require(user, Action.MANAGE_HUB)
    if not is_plain(name) or not is_plain(owner or ""):
        raise no_such_view(name)
    hub.registry.views.delete(owner or user.name, name, shared_only=not is_mine)
