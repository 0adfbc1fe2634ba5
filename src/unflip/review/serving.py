"""Serve the review page: a socket, a token, and uvicorn."""

import secrets
import socket
from typing import NamedTuple

import uvicorn

from unflip.errors import ConfigError
from unflip.review.guard import Guard
from unflip.review.pages import build_app
from unflip.review.review import Review


class Serving(NamedTuple):
    """A server that is bound to its port and ready to run."""

    address: str
    """The address to open, including the token."""
    server: uvicorn.Server
    listening: socket.socket

    def run(self) -> None:
        """Serve until a signal arrives or ``server.should_exit`` is set."""
        with self.listening:
            self.server.run(sockets=[self.listening])


def prepare(review: Review, listening: socket.socket, host: str) -> Serving:
    """Create a token and the server behind a socket of :func:`listen`, without serving yet."""
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
    """Bind the port early, so that a port in use is an error instead of a page that never loads."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"--host {host}: {error.strerror}; try 127.0.0.1") from error
    # With the protocol set, asyncio sends responses at once (TCP_NODELAY); otherwise each waits 40 ms.
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(256)
    except OSError as error:
        listening.close()
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; --port 0 picks a free port") from error
    return listening
