"""Users, sessions, tokens and saved views of the table of runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field

from aboard.boards.accounts import LONGEST_QUERY, Role, Session, Token, User, View, no_such_view
from aboard.boards.model import LONGEST_NAME, Visibility, is_plain
from aboard.hub import query
from aboard.hub.access import end_cookie, session_cookie
from aboard.hub.api import Duration, Name, RequestDocument, TheHub, TheUser, TheVisitor, api_router
from aboard.hub.auth import HubVisitor
from aboard.hub.permissions import Action, require
from aboard.hub.service import Hub
from aboard.runs.units import format_time, parse_duration

router = api_router("users")
views = api_router("views")
Password = Annotated[str, Field(max_length=1024)]
UserName = Annotated[str, Path(min_length=1, max_length=64)]
ViewName = Annotated[str, Query(min_length=1, max_length=LONGEST_NAME)]
OwnerName = Annotated[str | None, Query(description="Yours by default.", max_length=LONGEST_NAME)]


class Me(BaseModel):
    """The user of a request."""

    user: str
    role: Role
    personal: bool


class UserDocument(BaseModel):
    """A user."""

    name: str
    role: Role
    created: str

    @classmethod
    def of(cls, user: User) -> UserDocument:
        return cls(name=user.name, role=user.role, created=format_time(user.created) or "")


class UserList(BaseModel):
    """The users of the hub."""

    users: list[UserDocument]


class NewUser(RequestDocument):
    """A user to add; without a password, the user can log in only with a token."""

    name: Name
    role: Role = Role.MEMBER
    password: Password | None = None


class UserChange(RequestDocument):
    """The new role of a user."""

    role: Role


class NewPassword(RequestDocument):
    """A password."""

    password: Password


class Login(RequestDocument):
    """The name and password of a user."""

    user: Name
    password: Password


class NewToken(RequestDocument):
    """A token to create."""

    name: Annotated[str, Field(max_length=200)] = ""
    lasts: Duration | None = Field(None, description="No limit by default.", examples=["90d"])
    user: Name | None = Field(None, description="Its user; your own by default.")


class TokenDocument(BaseModel):
    """A token; its secret is returned only when it is created."""

    id: str
    user: str
    name: str
    prefix: str
    created: str
    expires: str | None
    revoked: str | None
    last_used: str | None
    token: str | None = None

    @classmethod
    def of(cls, token: Token, secret: str | None = None) -> TokenDocument:
        return cls(
            id=token.id,
            user=token.account,
            name=token.name,
            prefix=token.prefix,
            created=format_time(token.created) or "",
            expires=format_time(token.expires),
            revoked=format_time(token.revoked),
            last_used=format_time(token.last_used),
            token=secret,
        )


class TokenList(BaseModel):
    """Tokens, oldest first."""

    tokens: list[TokenDocument]


class SessionDocument(BaseModel):
    """A browser session."""

    id: str
    user: str
    created: str
    expires: str
    current: bool = Field(description="Whether it is the session of this request.")

    @classmethod
    def of(cls, session: Session, *, current: bool) -> SessionDocument:
        return cls(
            id=session.id,
            user=session.account,
            created=format_time(session.created) or "",
            expires=format_time(session.expires) or "",
            current=current,
        )


class SessionList(BaseModel):
    """Sessions, oldest first."""

    sessions: list[SessionDocument]


class LimitsDocument(BaseModel):
    """The limits of each user; null means any number of boards, 0 no ceiling."""

    isolated: int | None = Field(description="Boards with their own process.")
    instant: int | None = Field(description="Boards in the hub.")
    memory: int = Field(description="Of one isolated board, in bytes.")
    cpus: float = Field(description="Of one isolated board.")
    timeout: float = Field(description="Seconds that one isolated board may run.")
    idle_timeout: float = Field(description="Seconds until an unused one stops, by default.")


@router.get("/me")
def me(hub: TheHub, user: TheUser) -> Me:
    """Return your name and role."""
    return Me(user=user.name, role=user.role, personal=hub.personal)


@router.post("/login")
async def login(hub: TheHub, request: Request, response: Response, body: Login) -> Me:
    """Open a session; the response sets its cookie."""
    address = request.client.host if request.client else ""
    opened = await hub.auth.enter(body.user, body.password, address)
    response.headers["set-cookie"] = session_cookie(request.scope, opened)
    return me(hub, await query(hub.auth.user, body.user))


@router.post("/logout", status_code=204, response_model=None)
def logout(hub: TheHub, request: Request, response: Response, visitor: TheVisitor) -> None:
    """End the session of the request."""
    end_session(hub, visitor)
    response.headers["set-cookie"] = end_cookie(request.scope)


def end_session(hub: Hub, visitor: HubVisitor | None) -> None:
    if visitor is not None and visitor.session:
        hub.auth.log_out(visitor.session)


@router.get("/limits")
def get_limits(hub: TheHub) -> LimitsDocument:
    """Return the limits of each user."""
    return LimitsDocument(**asdict(hub.config.limits))


@router.get("/sessions")
def list_sessions(hub: TheHub, user: TheUser, visitor: TheVisitor) -> SessionList:
    """List your sessions, or all sessions if you manage users."""
    secret = visitor.session if visitor is not None else ""
    found = [
        SessionDocument.of(one, current=hub.auth.is_secret_of(one, secret))
        for one in hub.auth.sessions(user)
    ]
    return SessionList(sessions=found)


@router.delete("/sessions/{session}", status_code=204, response_model=None)
def end_one_session(hub: TheHub, user: TheUser, session: str) -> None:
    """End a session; its browser has to log in again."""
    hub.auth.end_session(user, session)


@router.get("/users")
def list_users(hub: TheHub) -> UserList:
    """List the users."""
    return UserList(users=[UserDocument.of(user) for user in hub.auth.users()])


@router.post("/users", status_code=201)
def add_user(hub: TheHub, body: NewUser) -> UserDocument:
    """Add a user."""
    return UserDocument.of(hub.auth.add_user(body.name, Role(body.role), body.password))


@router.patch("/users/{name}")
def change_user(hub: TheHub, name: UserName, body: UserChange) -> UserDocument:
    """Change the role of a user, from the next request on."""
    hub.auth.set_role(name, body.role)
    return UserDocument.of(hub.auth.user(name))


@router.delete("/users/{name}", status_code=204, response_model=None)
def remove_user(hub: TheHub, name: UserName) -> None:
    """Remove a user with all tokens, sessions and links; boards are kept."""
    hub.auth.remove_user(name)


@router.put("/users/{name}/password", status_code=204, response_model=None)
def set_password(hub: TheHub, name: UserName, body: NewPassword) -> None:
    """Set a password and end all sessions of its user."""
    hub.auth.set_password(name, body.password)


@router.get("/tokens")
def list_tokens(hub: TheHub, user: TheUser) -> TokenList:
    """List your tokens, or all tokens if you manage users."""
    return TokenList(tokens=[TokenDocument.of(token) for token in hub.auth.tokens(user)])


@router.post("/tokens", status_code=201)
def create_token(hub: TheHub, user: TheUser, body: NewToken | None = None) -> TokenDocument:
    """Create a token; only this response has its secret."""
    body = body or NewToken.model_validate({})
    if body.user is not None and body.user != user.name:
        require(user, Action.MANAGE_USERS)
        user = hub.auth.user(body.user)
    lasts = None if body.lasts is None else parse_duration(body.lasts)
    made = hub.auth.create_token(user, body.name, lasts=lasts)
    return TokenDocument.of(made.record, made.secret)


@router.delete("/tokens/{token}", status_code=204, response_model=None)
def revoke_token(hub: TheHub, user: TheUser, token: str) -> None:
    """Revoke a token."""
    hub.auth.revoke_token(user, token)


# Saved views.


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


@views.get("/views")
def list_views(hub: TheHub, user: TheUser) -> ViewList:
    """List your saved views and the team's."""
    found = hub.registry.views.seen_by(user.name)
    return ViewList(views=[ViewDocument.of(view) for view in found])


@views.put("/views")
def save_view(hub: TheHub, user: TheUser, body: NewView) -> ViewDocument:
    """Save a view; it replaces your view with the same name."""
    if body.visibility is Visibility.TEAM:
        require(user, Action.SHARE_VIEWS)
    saved = hub.registry.views.save(user.name, body.name, body.query, body.visibility)
    return ViewDocument.of(saved)


@views.delete("/views", status_code=204, response_model=None)
def delete_view(hub: TheHub, user: TheUser, name: ViewName, owner: OwnerName = None) -> None:
    """Delete one of your views or, as an administrator, a shared view of another user."""
    is_mine = owner in {None, user.name}
    if not is_mine:
        require(user, Action.MANAGE_HUB)
    if not is_plain(name) or not is_plain(owner or ""):
        raise no_such_view(name)
    hub.registry.views.delete(owner or user.name, name, shared_only=not is_mine)
