"""The review server: routes, socket, token, and uvicorn."""

import secrets
import socket
from importlib.resources import files
from typing import Annotated, Any, Literal, NamedTuple

import uvicorn
from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field
from starlette.exceptions import HTTPException as AnyHTTPException

from unflip.errors import ConfigError, InputError, UnflipError
from unflip.review import Order
from unflip.review.decisions import ABSENT, Choice, NotSavedError
from unflip.review.examples import MAX_INT, Filter, Number
from unflip.review.guard import Guard
from unflip.review.review import Action, Review, as_csv, described

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOREVER = "private, max-age=31536000, immutable"  # the address of an image changes with the run's examples
_SIZES = {"small": 256, "large": 1024}  # pixels of the longer side
_CHANGES = 500  # per response
_MAX_ITEMS = 1000  # examples per request
Index = Annotated[int, Path(ge=0, le=MAX_INT)]


def _readable(name: str) -> str:
    name = name.strip()
    if not name or not name.isprintable():
        raise ValueError("must be a name of printable characters")
    return name


class _Body(BaseModel, extra="forbid", strict=True):
    reviewer: Annotated[str, Field(max_length=80), AfterValidator(_readable)]
    request: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")  # repeating one after a lost response has no further effect


class _Item(BaseModel, extra="forbid", strict=True):
    index: Number
    version: Number


class _Decide(_Body):
    action: Action
    label: Number | None = None
    items: list[_Item] = Field(min_length=1, max_length=_MAX_ITEMS)


class _ListQuery(Filter):
    order: Order | None = None


class _PageQuery(_ListQuery):
    after: int = Field(-1, ge=-1, le=MAX_INT)
    before: Number | None = None
    count: int = Field(60, ge=1, le=200)


class _ChangesQuery(_ListQuery):
    since: Number = 0


def build_app(review: Review) -> FastAPI:
    """Return the application; it trusts all requests, see :class:`unflip.review.guard.Guard`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _report_errors(app)
    _serve_page(app)
    _serve_examples(app, review)
    _serve_decisions(app, review)
    return app


def _serve_page(app: FastAPI) -> None:
    """Serve the page itself, the same for every run."""
    static = {path.name: path.read_bytes() for path in (files("unflip.review") / "static").iterdir()}

    @app.get("/")
    async def page() -> Response:
        return Response(static["index.html"], media_type="text/html")

    @app.get("/static/{name}")
    async def static_file(name: str) -> Response:
        if name not in static:
            raise HTTPException(404, "no such file")
        return Response(static[name], media_type=_TYPES["." + name.rpartition(".")[2]])


def _serve_examples(app: FastAPI, review: Review) -> None:
    """Serve examples: pages of them, single ones, their images."""

    @app.get("/api/about")
    def about() -> Any:
        return JSONResponse(review.about())

    @app.get("/api/examples")
    def examples(query: Annotated[_PageQuery, Query()]) -> Any:
        order = query.order or review.order
        indices, total, first, last = review.examples.page(
            query, review.decisions.states, order=order, after=query.after, before=query.before, count=query.count
        )
        ranks = review.examples.ranking(order, query.issue).ranks
        shown = [{**review.brief(index), "rank": int(ranks[index])} for index in indices]
        progress = review.progress(query) | {"sample": review.sample()}
        return JSONResponse({"examples": shown, "total": total, "first": first, "last": last, "progress": progress})

    @app.get("/api/examples/{index}")
    def example(index: Index, query: Annotated[_ListQuery, Query()]) -> Any:
        ranks = review.examples.ranking(query.order or review.order, query.issue).ranks
        return JSONResponse({**review.detail(_check(review, index)), "rank": int(ranks[index])})

    @app.get("/api/examples/{index}/group")
    def group(index: Index) -> Any:
        members = review.group(_check(review, index))
        shown = [review.brief(member) for member in members[:_MAX_ITEMS]]
        return JSONResponse({"examples": shown, "total": len(members)})

    @app.get("/picture/{examples}/{size}/{index}")
    def picture(examples: str, size: Literal["small", "large"], index: Index) -> Response:
        if review.pictures is None or examples != review.picture_key:
            raise HTTPException(404, "no such image")
        try:
            content = review.pictures.thumbnail(_check(review, index), _SIZES[size])
        except InputError as error:
            raise HTTPException(404, f"the image of example {index} cannot be read") from error
        return Response(content, media_type=review.pictures.media_type, headers={"cache-control": _FOREVER})


def _serve_decisions(app: FastAPI, review: Review) -> None:
    """Record, undo, list and export decisions."""

    def who(body: _Body, request: Request) -> dict[str, str]:
        return {"person": request.scope["unflip.person"], "reviewer": body.reviewer, "request": body.request}

    @app.get("/api/changes")
    def changes(query: Annotated[_ChangesQuery, Query()]) -> Any:
        rows = review.decisions.since(query.since, _CHANGES)
        last = rows[-1].id if rows else min(query.since, review.decisions.last_id)
        progress = review.progress(query) | {"sample": review.sample()}
        changes = [described(row) for row in rows if row.example != ABSENT]
        return JSONResponse({"changes": changes, "last": last, "progress": progress})

    @app.post("/api/decide")
    def decide(body: _Decide, request: Request) -> Any:
        if (body.action == "choose") != (body.label is not None):
            raise InputError("label: needed for action 'choose', not allowed for any other")
        if len({item.index for item in body.items}) < len(body.items):
            raise InputError("items: an example appears twice")
        choices = [
            Choice(_check(review, item.index), item.version, *review.meaning(body.action, item.index, body.label))
            for item in body.items
        ]
        result = review.decisions.decide(choices, **who(body, request))
        return JSONResponse({name: [described(row) for row in rows] for name, rows in result._asdict().items()})

    @app.post("/api/undo")
    def undo(body: _Body, request: Request) -> Any:
        written = review.decisions.undo(**who(body, request))
        return JSONResponse({"written": [described(row) for row in written]})

    @app.get("/api/export.csv")
    def export() -> Response:
        headers = {"content-disposition": 'attachment; filename="reviewed.csv"'}
        return Response(as_csv(review.examples, review.decisions), media_type="text/csv", headers=headers)


def _check(review: Review, index: int) -> int:
    """Return the index of an example; raise HTTPException if it does not exist."""
    if index >= len(review.examples):
        raise HTTPException(404, f"example {index} does not exist; there are {len(review.examples)}, counted from 0")
    return index


def _report_errors(app: FastAPI) -> None:
    """Turn every error into a JSON response with a one-line message."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse({"error": f"{where or 'request'}: {first['msg']}"}, 422)

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, error: AnyHTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code)

    @app.exception_handler(UnflipError)
    async def wrong(_: Request, error: UnflipError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 503 if isinstance(error, NotSavedError) else 400)


class Serving(NamedTuple):
    """A server bound to its port and ready to run; ``address`` includes the token."""

    address: str
    server: uvicorn.Server
    listening: socket.socket

    def run(self) -> None:
        """Serve until a signal arrives or ``server.should_exit`` is set."""
        with self.listening:
            self.server.run(sockets=[self.listening])


def prepare(review: Review, listening: socket.socket, host: str) -> Serving:
    """Create a token and the server for a socket of :func:`listen`, without serving yet."""
    bound: int = listening.getsockname()[1]
    token = secrets.token_urlsafe(32)
    guarded = Guard(build_app(review), token=token, host=host, port=bound)
    config = uvicorn.Config(
        guarded, log_level="warning", access_log=False, server_header=False, date_header=False, lifespan="off",
        ws="none", http="h11", proxy_headers=False, timeout_graceful_shutdown=3, timeout_keep_alive=30,
    )  # fmt: skip
    shown = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    place = f"[{shown}]" if ":" in shown else shown
    return Serving(f"http://{place}:{bound}/?token={token}", uvicorn.Server(config), listening)


def listen(host: str, port: int) -> socket.socket:
    """Bind a port; raise ConfigError if it is in use."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"--host {host}: {error.strerror}; try 127.0.0.1") from error
    # asyncio sets TCP_NODELAY only if the protocol is set; otherwise each response waits 40 ms.
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(256)
    except OSError as error:
        listening.close()
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; --port 0 picks a free port") from error
    return listening
