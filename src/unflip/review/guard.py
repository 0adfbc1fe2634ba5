"""Guard: access control of requests, and the security headers of responses."""

import ipaddress
import re
import secrets
import socket
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
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
        request = Request(scope, receive)
        opening = scope["path"] == "/" and "token" in request.query_params
        cookies: list[str] = []  # to set

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
                for cookie in cookies:
                    headers.append("set-cookie", f"{cookie}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        try:
            self._check(request, opening=opening)
            body = await _read_body(request)
        except HTTPException as error:
            refusal = JSONResponse({"error": error.detail}, error.status_code, error.headers)
            await refusal(scope, receive, send_with_headers)
            return
        except ClientDisconnect:
            return
        person = request.cookies.get("unflip-person", "")
        if not _PERSON.fullmatch(person):
            person = secrets.token_hex(16)
            cookies.append(f"unflip-person={person}; Max-Age={_YEAR}")
        if opening:
            cookies.append(f"{self._cookie}={self._token.decode()}")
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
            raise HTTPException(421, "wrong host name; open the address that `unflip review` printed")
        if not all(origin.lower().partition("://")[2] == hosts[0].lower() for origin in origins):
            raise HTTPException(403, "requests must come from the review page, not from another site")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        token = request.query_params["token"] if opening else bearer or request.cookies.get(self._cookie, "")
        if not secrets.compare_digest(token.encode("latin-1", "replace"), self._token):
            raise HTTPException(403, "missing or old token; open the address that `unflip review` printed")
        if request.method not in ("GET", "HEAD") and not bearer and not origins:
            raise HTTPException(403, "no Origin header; programs must send the token as Authorization: Bearer")

    def _is_our_name(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or (self._any_address and ipaddress.ip_address(name) is not None)
        except ValueError:
            return False


async def _read_body(request: Request) -> bytes:
    """Read a body up to the size limit."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:  # the rest is not read
            reason = f"more than {_MAX_BODY} bytes; decide on fewer examples at once"
            raise HTTPException(413, reason, {"connection": "close"})
    return body
