"""Requests to endpoints: responses bounded in time and size, no redirects, and the waiting time that a busy
endpoint requests.
"""

import http.client
import io
import math
import re
import socket
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO

from rewardedit.language.endpoint_settings import is_private
from rewardedit.untrusted import CONTENT_ERRORS, MAX_BODY_BYTES, read_body

MAX_HEAD_BYTES = 2**23  # headers of a response: http.client reads 100 lines of 64 KiB
EPOCH = 1e9  # seconds: a larger number is a time, counted from 1970
RESETS = re.compile(r"(?:x-)?ratelimit-reset(?:-.*)?")
DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
UNITS = (86400, 3600, 60, 1, 0.001)


class _Bounded(io.RawIOBase):
    """Bytes that a socket receives, with a limit on the total time and the total size.

    The socket's own timeout starts anew with each piece, so a server that sends a byte now and then never
    reaches it. A chunked response may be endless.
    """

    def __init__(self, sock: socket.socket, file: BinaryIO) -> None:
        """
        Args:
            file: the socket's own file, which releases the socket when closed.
        """
        self.sock = sock
        self.file = file
        self.seconds = sock.gettimeout() or 0.0
        self.end = time.monotonic() + self.seconds
        self.room = MAX_HEAD_BYTES + 2 * MAX_BODY_BYTES  # chunks of a byte have a line each

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.end - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            size = self.sock.recv_into(buffer)
        except TimeoutError:
            raise TimeoutError(f"no whole answer within {self.seconds:g} s") from None
        self.room -= size
        if self.room < 0:
            raise ValueError(f"the answer is longer than {MAX_BODY_BYTES // 2**20} MiB")
        return size

    def close(self) -> None:
        self.file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response whose head and body must arrive within the connection's timeout."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Bounded(sock, self.fp))


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Response


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the key and the images would be sent along, perhaps to another host."""

    def http_error_302(self, *args: Any, **options: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def opener_for(host: str) -> urllib.request.OpenerDirector:
    """Returns an opener of requests to a host; it uses the environment's proxies only beyond private
    networks, as a proxy elsewhere must not see a key that is sent over plain http.
    """
    proxies = [urllib.request.ProxyHandler({})] if is_private(host) else []
    return urllib.request.build_opener(_Http, _Https, _NoRedirect, *proxies)


def read_whole(response: http.client.HTTPResponse) -> bytes:
    """Reads the body of a response.

    Raises:
        ValueError: if it is longer than `MAX_BODY_BYTES`.
        http.client.IncompleteRead: if it breaks off.
    """
    body = read_body(response)
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


def seconds_to_wait(headers: Mapping[str, str], now: float) -> float:
    """Seconds that a busy endpoint asks to wait: its Retry-After, else the longest of its x-ratelimit-reset
    headers whose x-ratelimit-remaining is 0, else the longest of all; 0.0 if it names none.

    Args:
        now: seconds since 1970.
    """
    by_name = {name.lower(): str(value) for name, value in headers.items()}
    milliseconds = _seconds(by_name.get("retry-after-ms"), now)
    if milliseconds is not None:
        return milliseconds / 1000

    after = _seconds(by_name.get("retry-after"), now)
    if after is not None:
        return after

    resets: list[float] = []
    spent: list[float] = []
    for name, text in by_name.items():
        seconds = _seconds(text, now) if RESETS.fullmatch(name) else None
        if seconds is not None:
            resets.append(seconds)
            if by_name.get(name.replace("reset", "remaining"), "").strip() == "0":
                spent.append(seconds)
    return max(spent or resets, default=0.0)


def _seconds(text: str | None, now: float) -> float | None:
    """Seconds that a header names: a number, "6m0s", "20ms", a timestamp or a date; None if it names none."""
    if text is None or not text.strip() or len(text) > 100:
        return None
    text = text.strip()
    try:
        match = DURATION.fullmatch(text)
        if match is not None:
            amounts = zip(match.groups(), UNITS, strict=True)
            seconds = sum(float(amount) * unit for amount, unit in amounts if amount)
        elif re.fullmatch(r"\d+(?:\.\d+)?", text):
            seconds = float(text)
            if seconds > 1000 * EPOCH:
                seconds /= 1000  # a timestamp in milliseconds
            seconds -= now if seconds > EPOCH else 0
        else:
            iso = re.match(r"\d{4}-\d\d-\d\d", text)
            moment = datetime.fromisoformat(text) if iso else parsedate_to_datetime(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            seconds = moment.timestamp() - now
    except CONTENT_ERRORS:
        return None

    return max(seconds, 0.0) if math.isfinite(seconds) else None
