"""The application: the requests of the review page and their responses."""

from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as AnyHTTPException

from unflip.errors import InputError, UnflipError
from unflip.review.decisions import Choice, NotSavedError, State
from unflip.review.examples import Filter
from unflip.review.export import as_csv
from unflip.review.order import Order
from unflip.review.review import Action, Review, described

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOREVER = "private, max-age=31536000, immutable"  # the address of an image changes with the run's examples
_SIZES = {"small": 256, "large": 1024}  # pixels of the longer side
_CHANGES = 500  # per response
_MOST = 1000  # examples that one request decides on
_LARGEST = 2**53  # the largest integer that JavaScript represents exactly


def _readable(name: str) -> str:
    name = name.strip()
    if not name or not name.isprintable():
        raise ValueError("must be a name of printable characters")
    return name


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    reviewer: Annotated[str, Field(max_length=80), AfterValidator(_readable)]
    request: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    """A unique id; repeating a request after a lost response has no further effect."""


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    index: int = Field(ge=0, le=_LARGEST)
    version: int = Field(ge=0, le=_LARGEST)


class _Decide(_Body):
    action: Action
    label: int | None = Field(None, ge=0, le=_LARGEST)
    items: list[_Item] = Field(min_length=1, max_length=_MOST)


class _OrderQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    order: Order | None = None
    finding: str | None = Field(None, max_length=100)


class _FilterQuery(_OrderQuery):
    differs: bool = False
    given: int | None = Field(None, ge=0, le=_LARGEST)
    suggested: int | None = Field(None, ge=0, le=_LARGEST)
    label_class: int | None = Field(None, ge=0, le=_LARGEST)
    below: float | None = Field(None, gt=0, le=1)
    state: Literal["open", "accepted", "kept", "changed", "removed", "unsure", "decided", "any"] = "any"

    def as_filter(self) -> Filter:
        states = None
        if self.state == "decided":
            states = frozenset(state for state in State if state.is_decided)
        elif self.state != "any":
            states = frozenset([State[self.state.upper()]])
        return Filter(self.differs, self.given, self.suggested, self.label_class, self.below, states, self.finding)


class _PageQuery(_FilterQuery):
    after: int = Field(-1, ge=-1, le=_LARGEST)
    before: int | None = Field(None, ge=0, le=_LARGEST)
    count: int = Field(60, ge=1, le=200)


class _ChangesQuery(_FilterQuery):
    since: int = Field(0, ge=0, le=_LARGEST)


Index = Annotated[int, Path(ge=0, le=_LARGEST)]


def build_app(review: Review) -> FastAPI:
    """Return the application, which trusts every request that reaches it; see :class:`unflip.review.guard.Guard`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _report_errors(app)
    _serve_page(app)
    _serve_examples(app, review)
    _serve_decisions(app, review)
    return app


def _serve_page(app: FastAPI) -> None:
    """Answer with the page itself, which is the same for every run."""
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
    """Answer with examples: pages of them, single ones, their images."""

    @app.get("/api/about")
    def about() -> Any:
        return JSONResponse(review.about())

    @app.get("/api/examples")
    def examples(query: Annotated[_PageQuery, Query()]) -> Any:
        wanted = query.as_filter()
        states = review.decisions.states
        order = query.order or review.order
        ranks = review.examples.ranking(order, query.finding).ranks
        found = review.examples.page(
            wanted, states, order=order, after=query.after, before=query.before, count=query.count
        )
        return JSONResponse(
            {
                "examples": [{**review.brief(index), "rank": int(ranks[index])} for index in found.indices],
                "total": found.total,
                "first": found.first,
                "last": found.last,
                "progress": review.progress(wanted),
            }
        )

    @app.get("/api/examples/{index}")
    def example(index: Index, query: Annotated[_OrderQuery, Query()]) -> Any:
        ranks = review.examples.ranking(query.order or review.order, query.finding).ranks
        return JSONResponse({**review.detail(_check(review, index)), "rank": int(ranks[index])})

    @app.get("/api/examples/{index}/group")
    def group(index: Index) -> Any:
        members = review.group(_check(review, index))
        return JSONResponse({"examples": [review.brief(member) for member in members[:_MOST]], "total": len(members)})

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
    """Take decisions, take them back, and answer with what has been decided."""

    @app.get("/api/changes")
    def changes(query: Annotated[_ChangesQuery, Query()]) -> Any:
        rows = review.decisions.since(query.since, _CHANGES)
        return JSONResponse(
            {
                "changes": [described(row) for row in rows],
                "last": rows[-1].id if rows else min(query.since, review.decisions.last_id),
                "progress": review.progress(query.as_filter()),
            }
        )

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
        written, conflicts = review.decisions.decide(
            choices, person=request.scope["unflip.person"], reviewer=body.reviewer, request=body.request
        )
        return JSONResponse(
            {"written": [described(row) for row in written], "conflicts": [described(row) for row in conflicts]}
        )

    @app.post("/api/undo")
    def undo(body: _Body, request: Request) -> Any:
        written = review.decisions.undo(
            person=request.scope["unflip.person"], reviewer=body.reviewer, request=body.request
        )
        return JSONResponse({"written": [described(row) for row in written]})

    @app.get("/api/export.csv")
    def export() -> Response:
        headers = {"content-disposition": 'attachment; filename="reviewed.csv"'}
        return Response(as_csv(review.examples, review.decisions), media_type="text/csv", headers=headers)


def _check(review: Review, index: int) -> int:
    """Refuse the number of an example that does not exist."""
    if index >= len(review.examples):
        raise HTTPException(404, f"example {index} does not exist; there are {len(review.examples)}, counted from 0")
    return index


def _report_errors(app: FastAPI) -> None:
    """Turn every error into a JSON response with one line of text."""

    def say(status: int, line: str) -> JSONResponse:
        return JSONResponse({"error": line}, status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return say(422, f"{where or 'request'}: {first['msg']}")

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, error: AnyHTTPException) -> JSONResponse:
        return say(error.status_code, str(error.detail))

    @app.exception_handler(NotSavedError)
    async def not_saved(_: Request, error: NotSavedError) -> JSONResponse:
        return say(503, str(error))

    @app.exception_handler(UnflipError)
    async def wrong(_: Request, error: UnflipError) -> JSONResponse:
        return say(400, str(error))
