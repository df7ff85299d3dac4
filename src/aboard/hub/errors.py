"""The errors of the API: one document for every error, and its HTTP status."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from aboard.boards.model import BoardLimitExceeded, BoardsError
from aboard.executors.base import ExecutorError
from aboard.jobs import JobError
from aboard.runs import RunsError
from aboard.runs.question import BadQuestion
from aboard.storage import StorageError
from aboard.web.pages import NOT_FOUND
from aboard.web.request import accepts_html


class ErrorBody(BaseModel):
    """What is wrong and what to do."""

    code: str = Field(examples=["not_found"])
    message: str = Field(examples=["board 'x' not found."])
    hint: str = Field(examples=["List yours with: aboard list"])
    boards: list[str] | None = Field(
        None, description="With limit_exceeded: the ids of the boards that count."
    )
    picture: str | None = Field(
        None, description="With bad_question: its text, with carets under the error."
    )


class ErrorDocument(BaseModel):
    """An error."""

    error: ErrorBody


_CODES = {
    400: ("bad_question",),
    401: ("not_authenticated",),
    403: ("forbidden", "cross_origin", "outside_roots", "limit_exceeded"),
    404: ("not_found",),
    409: ("ambiguous", "conflict", "illegal_transition", "name_taken", "idempotency_mismatch"),
    413: ("too_large",),
    422: ("bad_value", "bad_selector", "bad_template", "nothing_matches"),
    429: ("too_many_attempts",),
    502: ("engine", "storage"),
    503: ("database_unavailable", "bad_database", "busy"),
}
STATUSES = {code: status for status, codes in _CODES.items() for code in codes}


def status_of(error: BoardsError | RunsError) -> int:
    return STATUSES.get(error.code, 500)


def error_document(code: str, message: str, hint: str = "") -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint}}


def respond(error: BoardsError | RunsError) -> JSONResponse:
    document = error_document(error.code, error.message, error.hint)
    if isinstance(error, BoardLimitExceeded):
        document["error"]["boards"] = [board.id for board in error.boards]
    if isinstance(error, BadQuestion) and error.picture:
        document["error"]["picture"] = error.picture
    status = status_of(error)
    headers = {"cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="aboard"'
    if status in {429, 503}:
        headers["retry-after"] = "5"
    return JSONResponse(document, status, headers)


def add_error_handlers(app: FastAPI) -> None:
    async def ours(_: Request, error: BoardsError | RunsError) -> JSONResponse:
        return respond(error)

    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(error_document("invalid", _first(error), _HINT), 422)

    async def refused(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404 and not request.url.path.startswith("/api/"):
            reply = NOT_FOUND.reply(as_page=accepts_html(request.scope))
            return Response(reply.body, reply.status, dict(reply.headers))
        code, message, hint = _REFUSALS.get(
            error.status_code, ("refused", f"{error.detail}.", "See the documentation of the API.")
        )
        headers = dict(error.headers or {})
        return JSONResponse(error_document(code, message, hint), error.status_code, headers)

    async def upstream(_: Request, error: ExecutorError | StorageError) -> JSONResponse:
        code = "engine" if isinstance(error, ExecutorError) else "storage"
        return JSONResponse(error_document(code, str(error)), 502)

    async def of_job(_: Request, error: JobError) -> JSONResponse:
        code, status = _JOB_ERRORS.get(error.code, ("conflict", 409))
        return JSONResponse(error_document(code, str(error)), status)

    app.add_exception_handler(BoardsError, ours)  # type: ignore[arg-type]
    app.add_exception_handler(RunsError, ours)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, refused)  # type: ignore[arg-type]
    app.add_exception_handler(ExecutorError, upstream)  # type: ignore[arg-type]
    app.add_exception_handler(StorageError, upstream)  # type: ignore[arg-type]
    app.add_exception_handler(JobError, of_job)  # type: ignore[arg-type]


_JOB_ERRORS = {
    "invalid": ("bad_value", 422),
    "exists": ("name_taken", 409),
    "not_found": ("not_found", 404),
}
_HINT = "See the documentation of the API, or /openapi.json."
_REFUSALS = {
    400: ("bad_request", "invalid request.", "Send JSON."),
    404: ("not_found", "route not found.", _HINT),
    405: ("method_not_allowed", "method not allowed.", _HINT),
    413: ("too_large", "the request is too large.", "Send less."),
}


def _first(error: RequestValidationError) -> str:
    found = error.errors()[0]
    kind, context = str(found["type"]), found.get("ctx", {})
    if kind == "json_invalid":
        return "the request is not JSON."
    named = [part for part in found["loc"] if part not in {"body", "query", "path", "header"}]
    # After a field come indices of a list, or the name of the type that pydantic tried.
    where = ".".join(str(part) for i, part in enumerate(named) if not i or isinstance(part, int))
    where = where or "the request"
    if kind in {"enum", "literal_error"}:
        return f"{where} cannot be {str(found['input'])[:40]!r}: use {context['expected']}."
    if kind == "missing":
        return f"{where} is missing."
    if kind == "extra_forbidden":
        return f"unknown field {where}."
    message = str(found["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{where} {message[:1].lower()}{message[1:300]}."
