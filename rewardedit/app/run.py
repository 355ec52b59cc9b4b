"""The page as a program: listens, and keeps uploads in a folder that is removed at the end."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import FastAPI

from rewardedit.app.routes import OwnRoutes
from rewardedit.app.workbench import Workbench
from rewardedit.data.worlds import world
from rewardedit.images import to_pil
from rewardedit.serving.guards import Guard
from rewardedit.serving.metrics import Metrics
from rewardedit.serving.run import address_of, listen, make_server, run_until_ended

END_SECONDS = 3  # that open pages have when the server is ended
FONTS = {"font": ("system-ui", "sans-serif"), "font_mono": ("ui-monospace", "monospace")}  # none is fetched
EXAMPLES = 4  # of a world
NOTE = "It knows only drawn shapes of {0} × {0} pixels, as below: results for photographs are meaningless."


def run_app(workbench: Workbench, world_name: str | None) -> None:
    """Serves the page until SIGTERM or SIGINT.

    Args:
        world_name: the world whose samples are the examples; None: there are none.

    Raises:
        ValueError: if the address cannot be listened on.
    """
    listener = listen(workbench.config.server)
    with TemporaryDirectory(prefix="rewardedit-app-") as folder:
        app = make_app(workbench, Path(folder), world_name)
        print(f"page: {address_of(listener)}", file=sys.stderr, flush=True)
        run_until_ended(make_server(app, END_SECONDS), listener)


def make_app(workbench: Workbench, folder: Path, world_name: str | None) -> FastAPI:
    """The application that serves the page.

    Args:
        folder: for uploads and edits; gradio deletes them after an hour.
    """
    os.environ["GRADIO_TEMP_DIR"] = str(folder)  # read when gradio makes its components
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio sends nothing to its makers
    import gradio as gr

    from rewardedit.app.page import STYLE, make_page

    examples: Sequence[tuple[str, str]] = ()
    note = ""
    if world_name is not None:
        examples = write_examples(world_name, folder)
        note = NOTE.format(world(world_name).size)
    page = make_page(workbench, examples, note)
    server = workbench.config.server
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gr.mount_gradio_app(
        app,
        page,
        path="/",
        show_error=True,
        max_file_size=server.max_body_mb * 2**20,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        run_history=False,
        footer_links=[],
        theme=gr.themes.Default(**FONTS),
        css=STYLE,
    )
    app.add_middleware(OwnRoutes, folder=folder)
    app.add_middleware(Guard, config=server, metrics=Metrics())
    return app


def write_examples(world_name: str, folder: Path) -> Sequence[tuple[str, str]]:
    """Renders sources of a world's test split into a folder; returns the files with their instructions."""
    samples: Any = world(world_name).samples("test", 0, ("plain",), 0, EXAMPLES)
    pairs = []
    for number, (source, instruction) in enumerate(zip(samples.source, samples.instruction, strict=True)):
        file = folder / f"example-{number}.png"
        to_pil(source).save(file)
        pairs.append((str(file), instruction))
    return pairs
