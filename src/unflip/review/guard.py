"""Guard: access control of requests, and the security headers of responses."""

import ipaddress
import re
import secrets
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MAX_BODY = 256 * 1024  # bytes; a thousand decisions need a third of it
_PERSON = re.compile(r"[0-9a-f]{32}")
_YEAR = 365 * 24 * 3600
_WILDCARDS = ("0.0.0.0", "::", "")
_HEADERS = {
    # Only the page's own files are used, nothing is sent elsewhere, the page cannot be framed, and text from the data
    # cannot become markup (trusted types).
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_FIXED = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
_NO_STORE = (b"cache-control", b"no-store")


class _RefusedError(Exception):
    """A request is refused, with a status and a one-line reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """Accepts a request if it names this host, comes from our own page, and has the token.

    The token is in the first address. After that it is in a cookie that scripts cannot read and that requests from
    other sites do not carry; programs may send it as ``Authorization: Bearer``. With a wildcard host, the machine's own
    name and all numeric addresses are accepted: a DNS rebinding attack needs another name.
    """

    def __init__(self, app: ASGIApp, *, token: str, host: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._cookie = f"unflip-{port}"  # cookies ignore the port, and two reviews may run at once
        self._any_address = host in _WILDCARDS
        self._names = {"127.0.0.1", "::1", "localhost", host.lower()}
        if self._any_address:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it on to the application."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        opening = scope["path"] == "/" and "token" in request.query_params
        new: list[tuple[bytes, bytes]] = []  # cookies to set

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", []))
                cached = [] if any(name == b"cache-control" for name, _ in own) else [_NO_STORE]
                message = {**message, "headers": [*own, *_FIXED, *cached, *new]}
            await send(message)

        try:
            self._check(request, opening=opening)
            body = await _read_body(request.headers, receive)
        except _RefusedError as error:
            closing = {"connection": "close"} if error.status == 413 else {}  # the rest of the body is not read
            await JSONResponse({"error": str(error)}, error.status, closing)(scope, receive, send_with_headers)
            return
        person = request.cookies.get("unflip-person", "")
        if not _PERSON.fullmatch(person):
            person = secrets.token_hex(16)
            new.append(_set_cookie("unflip-person", f"{person}; Max-Age={_YEAR}"))
        if opening:
            new.append(_set_cookie(self._cookie, self._token.decode()))
        scope["unflip.person"] = person
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(parts, None) or await receive()

        await self._app(scope, replay, send_with_headers)

    def _check(self, request: Request, *, opening: bool) -> None:
        """Raise unless host, origin and token are valid."""
        headers = request.headers
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._is_our_name(hosts[0]):
            raise _RefusedError(421, "wrong host name; open the address that `unflip review` printed")
        if not all(_is_from(origin, hosts[0]) for origin in origins):
            raise _RefusedError(403, "requests must come from the review page, not from another site")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        token = request.query_params["token"] if opening else bearer or request.cookies.get(self._cookie, "")
        if not secrets.compare_digest(token.encode("latin-1", "replace"), self._token):
            raise _RefusedError(403, "missing or old token; open the address that `unflip review` printed")
        if request.method not in ("GET", "HEAD") and not bearer and not origins:
            raise _RefusedError(403, "no Origin header; programs must send the token as Authorization: Bearer")

    def _is_our_name(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or (self._any_address and _is_address(name))


def _is_from(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _set_cookie(name: str, value: str) -> tuple[bytes, bytes]:
    return b"set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Strict".encode()


async def _read_body(headers: Headers, receive: Receive) -> bytes:
    """Read a body, sent in one or more parts, up to the size limit."""
    too_large = _RefusedError(413, f"more than {_MAX_BODY} bytes; decide on fewer examples at once")
    announced = headers.get("content-length", "0")
    if not announced.isascii() or not announced.isdigit() or int(announced[:20]) > _MAX_BODY:
        raise too_large
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _RefusedError(400, "the connection ended before the request did")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > _MAX_BODY:
            raise too_large
    return body
