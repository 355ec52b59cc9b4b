"""The server as a program: listens, loads the scorers, and finishes what it has accepted when it is ended."""

import asyncio
import signal
import socket
import sys
from typing import Any

import uvicorn
from h11 import ConnectionClosed
from uvicorn.protocols.http.h11_impl import H11Protocol

from rewardedit.serving.app import make_app
from rewardedit.serving.scorer_set import ScorerSet
from rewardedit.serving.settings import ServeConfig

HEAD_SECONDS = 20.0  # in which the head of a request has to arrive
MOST_CONNECTIONS = 1000
BACKLOG = 2048
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PatientProtocol(H11Protocol):
    """HTTP on connections that are closed where the head of a request does not arrive in time."""

    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _watch(self) -> None:
        """Starts the timer when a head is awaited, and stops it when the head is there."""
        waits = self.cycle is None or self.cycle.response_complete
        if not waits:
            self._forget()
        elif self.head_timer is None:
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self._close)

    def _forget(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _close(self) -> None:
        self.head_timer = None
        if not self.transport.is_closing():
            self.conn.send(ConnectionClosed())
            self.transport.close()


def run_server(scorers: ScorerSet, config: ServeConfig) -> None:
    """Serves until SIGTERM or SIGINT; requests that were accepted are answered first.

    Raises:
        ValueError: if the address cannot be listened on.
        Exception: if the scorers cannot be loaded, or fail for good.
    """
    errors: list[BaseException] = []

    def fail(error: BaseException) -> None:
        errors.append(error)
        server.should_exit = True

    listener = listen(config)
    app = make_app(scorers, config, fail, lambda: print("ready", file=sys.stderr, flush=True))
    server = make_server(app)
    names = ", ".join(scorers.specs)
    print(f"loading {names} for {address_of(listener)} (its page: /docs)", file=sys.stderr, flush=True)
    run_until_ended(server, listener)
    if errors:
        raise errors[0]


def make_server(app: Any, seconds_to_end: int | None = None) -> uvicorn.Server:
    """A server of an application, within limits.

    Args:
        seconds_to_end: that open connections have when it is ended; None: as long as they need.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            log_level="warning",
            limit_concurrency=MOST_CONNECTIONS,
            server_header=False,
            timeout_graceful_shutdown=seconds_to_end,
        )
    )


def run_until_ended(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS
    }  # uvicorn raises them again
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address_of(listener: socket.socket) -> str:
    """The address that a socket listens on, as a browser takes it."""
    return url_of(*listener.getsockname()[:2])


def url_of(host: str, port: int) -> str:
    """The address of a host and a port, as a browser takes it."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def listen(config: ServeConfig) -> socket.socket:
    """The socket on which a server with these settings listens.

    Raises:
        ValueError: if the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only where a socket names its protocol
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        place = f"{config.host}:{config.port}"
        raise ValueError(f"{place}: {error.strerror}; choose another --port or --host") from error
