"""A guard before gradio: only the routes that the page uses, and only files that were uploaded.

gradio fetches an address, or opens a path, that a client names in place of an upload, for any component;
others of its routes fetch addresses or are tools of developers.
"""

import json
import re
from pathlib import Path
from typing import Any

from starlette.requests import Request

from rewardedit.serving.guards import Application, Message, Receive, Replay, Send
from rewardedit.untrusted import read_json

ROUTES = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)/?|/(assets|static|svelte)/.*"
    r"|/gradio_api/(info|app_id|startup-events|upload|upload_progress)/?"
    r"|/gradio_api/(queue/join|queue/data|run/predict|cancel|reset)/?"
    r"|/gradio_api/heartbeat/\w+|/gradio_api/file=/.*"
)
# The page loads nothing from other hosts, whatever gradio's frontend asks for.
HEADERS = {
    b"content-security-policy": b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    b"frame-ancestors 'self'",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}


REQUESTS = re.compile(r"/gradio_api/(queue/join|run/predict)/?")  # routes whose bodies name files
MAX_BODY_BYTES = 2**20  # of such a request: images are uploaded before it
REFUSED = "expected JSON in which files are uploads of this page; addresses and paths are not read"
GONE = "the upload is no longer kept; upload the image again"


class OwnRoutes:
    """Passes on requests for `ROUTES` whose files are uploads; answers all others with 404 or 422."""

    def __init__(self, app: Application, folder: Path) -> None:
        self.app = app
        self.folder = folder.resolve()  # of uploads

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if not ROUTES.fullmatch(scope["path"]):
            await answer(send, 404, "there is no such page")
            return
        if REQUESTS.fullmatch(scope["path"]):
            body = await Request(scope, receive).body()
            if fault := self._fault(body):
                await answer(send, 422, fault)
                return
            receive = Replay(body, receive)
        await self.app(scope, receive, with_headers(send))

    def _fault(self, body: bytes) -> str | None:
        """Why a request is refused; None for JSON in which each file is one in the folder of uploads."""
        if len(body) > MAX_BODY_BYTES:
            return REFUSED
        try:
            faults = list(map(self._fault_of_file, paths_in(read_json(body))))
        except (ValueError, OSError, RuntimeError):  # OSError: a path that no system has
            return REFUSED
        return REFUSED if REFUSED in faults else next(filter(None, faults), None)

    def _fault_of_file(self, path: Any) -> str | None:
        if not isinstance(path, str) or "//" in path:
            return REFUSED
        file = Path(path).resolve()
        if not file.is_relative_to(self.folder) or file.is_dir():
            return REFUSED
        return None if file.is_file() else GONE


def paths_in(value: Any) -> list[Any]:
    """The paths that objects hold, at any depth."""
    if isinstance(value, list):
        nested = value
        paths = []
    elif isinstance(value, dict):
        nested = list(value.values())
        paths = [value["path"]] if "path" in value else []
    else:
        return []
    for entry in nested:
        paths += paths_in(entry)
    return paths


async def answer(send: Send, status: int, reason: str) -> None:
    """Answers a request that is not passed on. gradio's page shows `detail` of 422, and `error` of others."""
    body = json.dumps({"error": reason, "detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def with_headers(send: Send) -> Send:
    """Adds `HEADERS` to an answer."""

    async def extended(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in HEADERS]
            message = {**message, "headers": [*kept, *HEADERS.items()]}
        await send(message)

    return extended
