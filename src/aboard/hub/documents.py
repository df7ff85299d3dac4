"""What the API takes and gives: the documents of its requests and responses, for OpenAPI too."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aboard.boards.accounts import Role, Share, Token, User
from aboard.boards.model import BoardRecord, Change, Engine, State, Visibility
from aboard.hub.amounts import timestamp

Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=64)]
Selectors = Annotated[list[Text], Field(max_length=10_000)]
Duration = Annotated[float, Field(ge=0, le=1e12)] | Annotated[str, Field(max_length=32)]
Size = Annotated[int, Field(ge=0, le=2**60)] | Annotated[str, Field(max_length=32)]
Place = Literal["instant", "process"]


class _Given(BaseModel):
    """A request's body: what is not known in it is an error."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(BaseModel):
    """What went wrong, and what to do."""

    code: str = Field(examples=["not_found"])
    message: str = Field(examples=["there is no board 'x'."])
    hint: str = Field(examples=["List yours with: aboard list"])
    boards: list[str] | None = Field(None, description="With limit_exceeded: those that count.")


class ErrorDocument(BaseModel):
    """An error, of any route."""

    error: ErrorBody


class Me(BaseModel):
    """Who asks."""

    user: str
    role: Role
    personal: bool


class BoardDocument(BaseModel):
    """A board."""

    id: str
    name: str
    title: str
    owner: str
    state: State
    reason: str
    condition: str = Field(description="'waiting for data', 'not answering', or nothing.")
    selectors: list[str]
    sources: list[str]
    template: str
    on: str
    engine: Engine
    url: str = Field(description="Its path on the hub.")
    created: str
    started: str | None
    ended: str | None
    expires: str | None
    last_request: str | None
    timeout: float
    idle_timeout: float
    memory: int
    visibility: Visibility
    runs: int = Field(description="How many runs it shows.")
    version: int

    @classmethod
    def of(
        cls,
        record: BoardRecord,
        *,
        prefix: str,
        runs: int | None,
        last_request: float | None,
        silent: bool = False,
    ) -> BoardDocument:
        """Describe a board; `runs` is None where nobody knows yet, `silent` if it hangs."""
        waits = record.state is State.RUNNING and runs == 0
        condition = "waiting for data" if waits else ""
        return cls(
            id=record.id,
            name=record.name,
            title=record.title,
            owner=record.owner,
            state=record.state,
            reason=record.reason,
            condition="not answering" if silent else condition,
            selectors=list(record.selectors),
            sources=list(record.sources),
            template=record.template,
            on=record.on,
            engine=record.engine,
            url=f"{prefix}/b/{record.id}/",
            created=timestamp(record.created) or "",
            started=timestamp(record.started),
            ended=timestamp(record.ended),
            expires=timestamp(record.expires),
            last_request=timestamp(last_request),
            timeout=record.timeout,
            idle_timeout=record.idle_timeout,
            memory=record.memory,
            visibility=record.visibility,
            runs=runs or 0,
            version=record.version,
        )


class BoardList(BaseModel):
    """A page of boards, the newest first."""

    boards: list[BoardDocument]
    next: str | None = Field(description="Give it as `cursor` to get those that follow.")


class NewBoard(_Given):
    """A board that is wanted; what is not said is as the hub's settings have it."""

    selectors: Annotated[Selectors, Field(min_length=1, examples=[["cifar10/run3", "tag:best"]])]
    name: Name | None = None
    title: Text | None = None
    template: Text | None = Field(None, examples=["{experiment}_{run}_lr={hparams.lr}"])
    on: Place | None = None
    engine: Engine | None = None
    timeout: Duration | None = Field(None, examples=["7d"])
    idle_timeout: Duration | None = Field(None, examples=["90m"])
    memory: Size | None = Field(None, examples=["2GiB"])
    new: bool = Field(False, description="Make one, even if there is one of this selection.")
    visibility: Visibility | None = None


class BoardChange(_Given):
    """What is to be different."""

    name: Name | None = None
    visibility: Visibility | None = None
    timeout: Duration | None = None
    idle_timeout: Duration | None = None
    extend: Duration | None = Field(None, description="More time to run.", examples=["2h"])


class Stop(_Given):
    """How to stop a board."""

    now: bool = Field(False, description="Without time to end by itself.")


class SelectionChange(_Given):
    """Selectors to add and to remove."""

    add: Selectors = []
    remove: Selectors = []


class HistoryEvent(BaseModel):
    """A state a board was in."""

    state: State
    reason: str
    at: str

    @classmethod
    def of(cls, change: Change) -> HistoryEvent:
        """Describe a change."""
        return cls(state=change.state, reason=change.reason, at=timestamp(change.at) or "")


class History(BaseModel):
    """What a board went through, the oldest first."""

    events: list[HistoryEvent]


class Link(BaseModel):
    """A link that opens a board in a browser, once."""

    url: str
    expires: str


class NewShare(_Given):
    """How long a link lasts."""

    for_: Duration | None = Field(None, alias="for", examples=["7d"])


class ShareDocument(BaseModel):
    """A link to a board; its address is shown only when it is made."""

    id: str
    made_by: str
    created: str
    expires: str | None
    revoked: str | None
    url: str | None = None

    @classmethod
    def of(cls, share: Share, url: str | None = None) -> ShareDocument:
        """Describe a link."""
        return cls(
            id=share.id,
            made_by=share.made_by,
            created=timestamp(share.created) or "",
            expires=timestamp(share.expires),
            revoked=timestamp(share.revoked),
            url=url,
        )


class ShareList(BaseModel):
    """The links to a board."""

    shares: list[ShareDocument]


class RunDocument(BaseModel):
    """A run below a root."""

    experiment: str
    name: str
    uri: str
    root: str
    state: str | None
    workspace: str
    job: str
    user: str
    host: str
    reason: str
    exit_code: int | None
    created: str | None
    started: str | None
    ended: str | None
    hparams: dict[str, Any]
    tags: dict[str, Any]
    metrics: dict[str, Any]
    problem: str


class RunList(BaseModel):
    """A page of runs, in their natural order."""

    runs: list[RunDocument]
    next: str | None


class RootDocument(BaseModel):
    """A place where runs are."""

    uri: str
    name: str
    looked: str | None = Field(description="When it was last looked at.")
    problem: str
    runs: int


class RootList(BaseModel):
    """The roots of the hub."""

    roots: list[RootDocument]


class UserDocument(BaseModel):
    """A user."""

    name: str
    role: Role
    created: str

    @classmethod
    def of(cls, user: User) -> UserDocument:
        """Describe a user."""
        return cls(name=user.name, role=user.role, created=timestamp(user.created) or "")


class UserList(BaseModel):
    """The users of the hub."""

    users: list[UserDocument]


class NewUser(_Given):
    """Somebody who may come in; without a password with tokens only."""

    name: Name
    role: Role = Role.MEMBER
    password: Annotated[str, Field(max_length=1024)] | None = None


class UserChange(_Given):
    """What somebody may do from now on."""

    role: Role


class NewPassword(_Given):
    """A password."""

    password: Annotated[str, Field(max_length=1024)]


class Login(_Given):
    """Who wants to come in."""

    user: Name
    password: Annotated[str, Field(max_length=1024)]


class NewToken(_Given):
    """A token that is wanted."""

    name: Annotated[str, Field(max_length=200)] = ""
    lasts: Duration | None = Field(None, description="None for ever.", examples=["90d"])
    user: Name | None = Field(None, description="For whom; yourself by default.")


class TokenDocument(BaseModel):
    """A token; its secret is shown only when it is made."""

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
        """Describe a token."""
        return cls(
            id=token.id,
            user=token.account,
            name=token.name,
            prefix=token.prefix,
            created=timestamp(token.created) or "",
            expires=timestamp(token.expires),
            revoked=timestamp(token.revoked),
            last_used=timestamp(token.last_used),
            token=secret,
        )


class TokenList(BaseModel):
    """Tokens, the oldest first."""

    tokens: list[TokenDocument]
