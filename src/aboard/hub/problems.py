"""What went wrong, as the API tells it: one document for every error, with the status that fits."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from aboard.boards.errors import BoardLimitExceeded, BoardsError
from aboard.executors.base import ExecutorError
from aboard.storage import StorageError
from aboard.web.pages import NOT_FOUND
from aboard.web.request import accepts_html

STATUSES: Mapping[str, int] = MappingProxyType(
    {
        "not_authenticated": 401,
        "too_many_attempts": 429,
        "forbidden": 403,
        "cross_origin": 403,
        "outside_roots": 403,
        "limit_exceeded": 403,
        "not_found": 404,
        "ambiguous": 409,
        "conflict": 409,
        "illegal_transition": 409,
        "name_taken": 409,
        "idempotency_mismatch": 409,
        "bad_value": 422,
        "bad_selector": 422,
        "bad_template": 422,
        "nothing_matches": 422,
        "storage": 502,
        "database_unavailable": 503,
        "bad_database": 503,
    }
)
"""By code; other errors of ours are 500."""


def status_of(error: BoardsError) -> int:
    """Return the status with which an error is told."""
    return STATUSES.get(error.code, 500)


def error_document(code: str, message: str, hint: str = "") -> dict[str, Any]:
    """Describe an error."""
    return {"error": {"code": code, "message": message, "hint": hint}}


def respond(error: BoardsError) -> JSONResponse:
    """Answer with an error of ours."""
    document = error_document(error.code, error.message, error.hint)
    if isinstance(error, BoardLimitExceeded):
        document["error"]["boards"] = [board.id for board in error.boards]
    status = status_of(error)
    headers = {"cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="aboard"'
    if status in {429, 503}:
        headers["retry-after"] = "5"
    return JSONResponse(document, status, headers)


def tell_problems(app: FastAPI) -> None:
    """Let an application answer with error documents, whatever goes wrong."""

    async def ours(_: Request, error: BoardsError) -> JSONResponse:
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

    async def elsewhere(_: Request, error: ExecutorError | StorageError) -> JSONResponse:
        return JSONResponse(error_document("storage", str(error)), 502)

    app.add_exception_handler(BoardsError, ours)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, refused)  # type: ignore[arg-type]
    app.add_exception_handler(ExecutorError, elsewhere)  # type: ignore[arg-type]
    app.add_exception_handler(StorageError, elsewhere)  # type: ignore[arg-type]


_HINT = "See the documentation of the API, or /openapi.json."
_REFUSALS = {
    400: ("bad_request", "this request cannot be understood.", "Send JSON."),
    404: ("not_found", "there is nothing here.", _HINT),
    405: ("method_not_allowed", "this cannot be asked in this way.", _HINT),
    413: ("too_large", "the request is too large.", "Send less."),
}


def _first(error: RequestValidationError) -> str:
    """Say what is wrong with the first thing that is."""
    found = error.errors()[0]
    kind, context = str(found["type"]), found.get("ctx", {})
    if kind == "json_invalid":
        return "the request is no JSON."
    named = [part for part in found["loc"] if part not in {"body", "query", "path", "header"}]
    # What follows a field are places in a list, or which of several types was tried.
    where = ".".join(str(part) for i, part in enumerate(named) if not i or isinstance(part, int))
    where = where or "the request"
    if kind in {"enum", "literal_error"}:
        return f"{where} cannot be {str(found['input'])[:40]!r}: choose {context['expected']}."
    if kind == "missing":
        return f"{where} is missing."
    if kind == "extra_forbidden":
        return f"{where} is not known here."
    message = str(found["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{where} {message[:1].lower()}{message[1:300]}."
