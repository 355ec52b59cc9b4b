"""Guards before all routes: who may ask, how much, and how long a request may take to arrive."""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from rewardedit.serving.budget import Budget, Refusal, Reservation
from rewardedit.serving.flow_factory import speaks_flow_factory
from rewardedit.serving.metrics import Metrics
from rewardedit.serving.settings import ServeConfig

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/health",)  # answered without a token, for load balancers
DRAINED_BYTES = 2**30  # of a refused request that are read and dropped, so that its client reads the answer
DRAIN_SECONDS = 5.0


class Guard:
    """Refuses foreign hosts and origins, wrong tokens, and bodies that are too large or too slow; reads the
    body of every other request before the application sees it.
    """

    def __init__(self, app: Application, config: ServeConfig, metrics: Metrics) -> None:
        self.app = app
        self.config = config
        self.metrics = metrics
        self.host_names = config.host_names
        self.held = Budget(config.max_held_mb * 2**20, "requests at a time")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        answer = Answer(scope, send, self.metrics)
        incoming = Incoming(receive)
        with Reservation(self.held) as reservation:
            try:
                self._require_allowed(scope)
                body = await self._read(Headers(scope=scope), incoming, reservation)
            except Refusal as refusal:
                await answer.refuse(refusal, incoming)
                return
            if body is not None:
                await self.app(scope, Replay(body, incoming), answer.send)

    def _require_allowed(self, scope: Message) -> None:
        """Raises Refusal for a client that may not ask."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_own(host):
            raise Refusal(
                403, f"Host: {host[:80]!r} is no name of this server; start it with --allow-host NAME"
            )
        origin = headers.get("origin")
        if origin is not None and _network_location(origin) != host.lower():
            raise Refusal(403, "Origin: pages of other sites may not use this server")

        authorised = self.config.token is None or _sent_token(headers, self.config.token)
        scope.setdefault("state", {})["authorised"] = authorised
        if not authorised and scope["path"] not in OPEN_PATHS:
            raise Refusal(
                401, "expected the server's token: Authorization: Bearer TOKEN, or http://any:TOKEN@host"
            )

    def _is_own(self, host: str) -> bool:
        """True for a Host header with an address or a name of this server: a page whose name was made to
        resolve to this machine (DNS rebinding) has another one.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.host_names or _is_address(name)

    async def _read(self, headers: Headers, receive: Receive, reservation: Reservation) -> bytes | None:
        """The body of a request; None if the client has gone.

        Raises:
            Refusal: 413 if it is too large, 408 if it is too slow, 429 if the server holds too much already.
        """
        limit = self.config.max_body_mb * 2**20
        too_large = Refusal(413, f"body: expected at most {self.config.max_body_mb} MiB; send fewer items")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.config.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > limit:
                        raise too_large
                    reservation.take(len(chunk))
                    parts.append(chunk)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(408, f"body: expected within {self.config.body_timeout:g} s") from None


class Incoming:
    """The parts of a request as they arrive."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False  # nothing more will come

    async def __call__(self) -> Message:
        message = await self._receive()
        self.is_complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


class Answer:
    """The answer to one request, counted."""

    def __init__(self, scope: Message, send: Send, metrics: Metrics) -> None:
        self.scope = scope
        self._send = send
        self.metrics = metrics
        self.began = time.monotonic()

    async def send(self, message: Message) -> None:
        """Passes on a part of the answer."""
        if message["type"] == "http.response.start":
            route = self.scope.get("route")
            path = getattr(route, "path", "other")
            self.metrics.requests.labels(path, str(message["status"])).inc()
            self.metrics.seconds.labels(path).observe(time.monotonic() - self.began)
        await self._send(message)

    async def refuse(self, refusal: Refusal, incoming: Incoming) -> None:
        """Answers a request that has not been read to its end, and closes its connection.

        Clients send all before they read an answer: more of the body is read and dropped, within limits.
        """
        status = 200 if speaks_flow_factory(self.scope["path"], refusal) else refusal.status
        body = json.dumps({"error": refusal.reason}).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        pairs = []
        for name, value in (headers | refusal.headers).items():
            pairs.append((name.lower().encode(), value.encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await _drain(incoming)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(incoming: Incoming) -> None:
    dropped = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while not incoming.is_complete and dropped < DRAINED_BYTES:
                message = await incoming()
                dropped += len(message.get("body", b""))
    except TimeoutError:
        return


class Replay:
    """The body of a request that has been read, as the application receives it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _network_location(origin: str) -> str:
    """Host and port of an origin, in lower case; "" if it is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _sent_token(headers: Headers, token: str) -> bool:
    """True if the Authorization header holds the token: as Bearer, or as the password of Basic, which clients
    send that know no token but an address such as http://any:TOKEN@host.
    """
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode("latin-1").partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(value.strip().encode("latin-1", "replace"), token.encode())
