"""Engines for isolated boards, and trials of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field

from aboard.boards.model import to_document
from aboard.executors import EngineReport
from aboard.hub.api import RequestDocument, TheHub, TheUser, api_router
from aboard.hub.api.boards import BoardDocument
from aboard.hub.engines import ProbedEngine, TrialReport

router = api_router("engines")
EngineName = Annotated[
    str, Path(description="`ENGINE` or `ENGINE:PROFILE`.", min_length=1, max_length=200)
]
BoardId = Annotated[str, Path(min_length=1, max_length=64)]


class EngineDocument(BaseModel):
    """An engine, or one of its profiles."""

    name: str = Field(description="The `on` of a board: `ENGINE` or `ENGINE:PROFILE`.")
    answers: bool | None = Field(description="Null if it was not queried.")
    version: str
    resources: dict[str, str] = Field(description="What is free, in the engine's words.")
    problem: str
    hint: str

    @classmethod
    def of(cls, engine: ProbedEngine) -> EngineDocument:
        report = engine.report or EngineReport(answers=False)
        return cls(
            name=engine.name,
            answers=None if engine.report is None else report.answers,
            version=report.version,
            resources=dict(report.resources),
            problem=report.problem,
            hint=report.hint,
        )


class EngineList(BaseModel):
    """The engines that the hub offers."""

    engines: list[EngineDocument]


class NewTrial(RequestDocument):
    """A trial to start."""

    roots: bool = Field(True, description="Let it read the local roots of the hub.")


class TrialDocument(BaseModel):
    """The hub's view of a trial."""

    accepted: bool = Field(description="Whether the engine accepted it.")
    address: str = Field(description="Where the hub reaches it; empty before it listens.")
    fingerprint: str = Field(
        description="Fingerprint of the certificate made for it; empty for plain HTTP."
    )
    presented: str = Field(description="Fingerprint of the certificate that it presents.")
    status: int | None = Field(description="The status of a request without a token.")
    problem: str
    left: list[str] = Field(description="What remains on the engine and in the hub's directory.")

    @classmethod
    def of(cls, report: TrialReport) -> TrialDocument:
        return cls(**asdict(report))


@router.get("/engines")
def list_engines(
    hub: TheHub, probe: Annotated[bool, Query(description="Query each of them.")] = True
) -> EngineList:
    """List the engines with their profiles, and probe them."""
    found = (
        hub.engines.probe() if probe else [ProbedEngine(name, None) for name in hub.engines.names]
    )
    return EngineList(engines=[EngineDocument.of(one) for one in found])


@router.post("/engines/{name}/trials", status_code=201)
def try_engine(
    hub: TheHub, user: TheUser, name: EngineName, trial: NewTrial | None = None
) -> BoardDocument:
    """Start a trial on an engine: a board that writes a few points and shows them."""
    board = hub.try_engine(user, name, roots=trial is None or trial.roots)
    return BoardDocument(**to_document(hub.describe(board)))


@router.get("/engines/{name}/trials/{board}")
def get_trial(hub: TheHub, user: TheUser, name: EngineName, board: BoardId) -> TrialDocument:
    """Connect to a trial without a token, and report what remains of it."""
    return TrialDocument.of(hub.examine_trial(user, name, board))
