"""Guard: what a request needs to be let in, and the headers of every response."""

import ipaddress
import json
import re
import secrets
import socket
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MAX_BODY = 256 * 1024  # bytes; a thousand decisions need a third of it
_PERSON = re.compile(r"[0-9a-f]{32}")
_YEAR = 365 * 24 * 3600
_WILDCARDS = ("0.0.0.0", "::", "")
_HEADERS = {
    # Only our own files are run or shown, nothing is sent elsewhere, the page cannot be framed, and text from the data
    # cannot become markup even if we make a mistake (trusted types).
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
_NO_STORE = (b"cache-control", b"no-store")


class _Refusal(NamedTuple):
    status: int
    reason: str


class Guard:
    """Lets a request in if it names this machine, comes from our own page, and has the token.

    The token is part of the address that is opened first. After that it is in a cookie that scripts cannot read and
    that requests from other sites do not carry; programs may send it as ``Authorization: Bearer``. With a wildcard
    host, the machine's own name and all numeric addresses are accepted: an attacker can only point other names at us.
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
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        cookies = _cookies(headers)
        opening = scope["path"] == "/" and b"token=" in scope["query_string"]
        given = _query_token(scope) if opening else _bearer(headers) or cookies.get(self._cookie, "")
        refusal = self._refuse(scope["method"], headers, given, by_cookie=not _bearer(headers))
        body = b""
        if refusal is None:
            read = await _read_body(headers, receive)
            if isinstance(read, _Refusal):
                refusal = read
            else:
                body = read
        new: list[tuple[bytes, bytes]] = []
        if refusal is None:
            person = cookies.get("unflip-person", "")
            if not _PERSON.fullmatch(person):
                person = secrets.token_hex(16)
                new.append(_set_cookie("unflip-person", f"{person}; Max-Age={_YEAR}"))
            if opening:
                new.append(_set_cookie(self._cookie, self._token.decode()))
            scope["unflip.person"] = person
        fixed = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", []))
                cached = [] if any(name == b"cache-control" for name, _ in own) else [_NO_STORE]
                message = {**message, "headers": [*own, *fixed, *cached, *new]}
            await send(message)

        if refusal is not None:
            await _answer(refusal, send_with_headers)
        else:
            await self._app(scope, _replay(body, receive), send_with_headers)

    def _refuse(self, method: str, headers: dict[str, list[str]], token: str, *, by_cookie: bool) -> _Refusal | None:
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_our_name(hosts[0]):
            return _Refusal(421, "wrong host name; open the address that `unflip review` printed")
        origins = headers.get("origin", [])
        if not all(_is_from(origin, hosts[0]) for origin in origins):
            return _Refusal(403, "requests must come from the review page, not from another site")
        if not secrets.compare_digest(token.encode("latin-1", "replace"), self._token):
            return _Refusal(403, "missing or old token; open the address that `unflip review` printed")
        if method not in ("GET", "HEAD") and by_cookie and not origins:
            return _Refusal(403, "no Origin header; programs must send the token as Authorization: Bearer")
        return None

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


def _cookies(headers: dict[str, list[str]]) -> dict[str, str]:
    """Return the cookies; other programs on this machine may have set some too, in any form."""
    pairs = (part.strip().partition("=") for part in ";".join(headers.get("cookie", [])).split(";"))
    return {name: value for name, _, value in pairs}


def _query_token(scope: Scope) -> str:
    text: str = scope["query_string"].decode("latin-1")
    return parse_qs(text).get("token", [""])[0]


def _bearer(headers: dict[str, list[str]]) -> str:
    return headers.get("authorization", [""])[0].removeprefix("Bearer ")


def _set_cookie(name: str, value: str) -> tuple[bytes, bytes]:
    return b"set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Strict".encode()


async def _read_body(headers: dict[str, list[str]], receive: Receive) -> bytes | _Refusal:
    """Read a body, sent in one or more parts, up to the size limit."""
    too_large = _Refusal(413, f"more than {_MAX_BODY} bytes; decide on fewer examples at once")
    announced = headers.get("content-length", ["0"])[0]
    if not announced.isascii() or not announced.isdigit() or int(announced[:20]) > _MAX_BODY:
        return too_large
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return _Refusal(400, "the connection ended before the request did")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > _MAX_BODY:
            return too_large
    return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that yields the body once and then calls the real one."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _answer(refusal: _Refusal, send: Send) -> None:
    body = json.dumps({"error": refusal.reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.status == 413:
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
