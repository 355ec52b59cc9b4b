"""Settings of a server: addresses, batches, and the limits that keep it in bounded memory."""

import ipaddress
import os
import socket
from dataclasses import dataclass, fields

TOKEN = "REWARDEDIT_TOKEN"  # environment variable that holds the token which clients send
LEAST_TOKEN = 16  # characters of a token that guards a server which other machines can reach
MEGAPIXEL = 2**20


@dataclass(frozen=True)
class ServeConfig:
    """Settings of a server.

    Raises:
        ValueError: for a number that is too small, more items in a request than the queue holds, or a host
            that other machines can reach without a token.
    """

    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0: all, which needs REWARDEDIT_TOKEN
    port: int = 8008  # port to listen on; 0: any free one
    allow_host: tuple[str, ...] = ()  # further names by which clients may address this server
    replicas: int = 1  # processes that score; several share the GPUs of this machine
    batch_size: int = 16  # most edits scored at once; fewer where images are larger than a megapixel
    max_wait_ms: float = 5.0  # longest wait in milliseconds for a batch to fill
    max_queue: int = 1024  # edits that may wait; more are refused with 429
    max_items: int = 256  # edits in one request
    max_pixels: int = 16 * MEGAPIXEL  # pixels of one image
    max_body_mb: int = 128  # MiB of one request
    max_held_mb: int = 512  # MiB of all requests that are read or answered at a time
    max_decoded_mb: int = 4096  # MiB of all decoded images that wait
    body_timeout: float = 60.0  # seconds in which the body of a request has to arrive
    token: str | None = None  # that clients send; None: none is asked for

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("port", "max_wait_ms") else 1
            if isinstance(value, int | float) and value < least:
                raise ValueError(f"{field.name}: expected at least {least}; got {value}")
        if self.max_items > self.max_queue:
            raise ValueError(f"max_items: expected at most max_queue, {self.max_queue}; got {self.max_items}")
        self._require_token()

    def _require_token(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise ValueError(f"{TOKEN}: expected printable ASCII characters; got others")
        if is_loopback(self.host):
            return
        remedy = f"set {TOKEN}, e.g. to the output of: openssl rand -hex 32"
        if not self.token:
            raise ValueError(f"host {self.host}: expected a token, as other machines can reach it; {remedy}")
        if len(self.token) < LEAST_TOKEN:
            raise ValueError(
                f"{TOKEN}: expected at least {LEAST_TOKEN} characters; got {len(self.token)}; {remedy}"
            )

    @property
    def host_names(self) -> frozenset[str]:
        """Names, in lower case, by which clients may address the server, besides IP addresses."""
        named = ("localhost", self.host, socket.gethostname(), *self.allow_host)
        return frozenset(map(str.lower, named))


def token_of_environment() -> str | None:
    """The token of REWARDEDIT_TOKEN; None if the variable is empty or not set."""
    return os.environ.get(TOKEN, "").strip() or None


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
