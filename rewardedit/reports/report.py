"""HTML pages that need no server: words, tables, charts, and walls of images, which lie beside the page."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rewardedit.files import remove, replaced
from rewardedit.reports.charts import Drawing, Intervals
from rewardedit.reports.wall import Wall
from rewardedit.untrusted import whole_text

TEMPLATES = Path(__file__).with_name("templates")
LINKED = ("commands", "panels", "wall")  # sections that the top of a long page links
SINGULAR = {"wins": "win", "ties": "tie", "losses": "loss"}
IMAGES = "-images"  # the folder of a page's images is named after the page


@dataclass(frozen=True)
class Headline:
    """The result of a page in words, with the counts behind it as one bar."""

    verdict: str
    sentence: str
    tone: str = ""  # "better" or "worse"
    counts: dict[str, int] = field(default_factory=dict)  # wins, ties and losses
    notes: Sequence[str] = ()

    @property
    def bars(self) -> list[dict[str, Any]]:
        """Parts of the bar in percent of its width."""
        total = max(sum(self.counts.values()), 1)
        bars = []
        start = 0.0
        for (name, count), kind in zip(self.counts.items(), ("better", "even", "worse"), strict=True):
            width = 100 * count / total
            said = SINGULAR.get(name, name) if count == 1 else name
            bars.append({"name": said, "count": count, "kind": kind, "start": start, "width": width})
            start += width
        return bars


class Report:
    """A page that is written section by section and saved as a file, with its images in a folder beside it.

    Args:
        reload: seconds after which an open page is read again; None: never.
    """

    def __init__(self, title: str, reload: int | None = None) -> None:
        self.title = title
        self.reload = reload
        self.parts: list[tuple[str, dict[str, Any]]] = []  # kind and content of each section
        self.walls: list[Wall] = []

    def _add(self, kind: str, title: str = "", **shown: Any) -> None:
        self.parts.append((kind, {"title": title, **shown}))

    def text(self, text: str) -> None:
        self._add("text", text=text)

    def flag(self, text: str) -> None:
        """Adds a warning in red."""
        self._add("flag", text=text)

    def headline(self, headline: Headline) -> None:
        self._add("headline", headline=headline)

    def commands(self, title: str, commands: Sequence[tuple[str, str]]) -> None:
        """Adds commands to copy, each with its purpose."""
        self._add("commands", title, commands=commands)

    def output(self, text: str) -> None:
        """Adds the output of a program as it is."""
        self._add("output", text=text)

    def table(
        self, title: str, rows: Mapping[str, Mapping[str, float | str | None]], folded: bool = False
    ) -> None:
        """Adds a table with one row per name and one column per key; cells of None are empty. A folded one
        opens on a click.
        """
        columns = list(dict.fromkeys(chain.from_iterable(rows.values())))
        self._add("folded" if folded else "table", title, columns=columns, rows=rows)

    def panels(self, title: str, panels: Sequence[Intervals | Drawing | None]) -> None:
        """Adds small charts side by side, leaving out None; without any, no section."""
        drawn = [panel for panel in panels if panel is not None]
        if drawn:
            self._add("panels", title, panels=drawn)

    def wall(self, title: str, wall: Wall) -> None:
        self.walls.append(wall)
        self._add("wall", title, wall=wall)

    def glance(self, wall: Wall) -> None:
        """Adds the images of a wall's greatest gain and greatest loss, linked to their places on it; without
        gains, those of its first edit. The wall itself is added by `wall`.
        """
        shown = wall.extremes()
        if shown:
            self._add("glance", edits=shown)

    def save(self, path: Path) -> Path:
        """Writes the images and then the page, whole or not at all, and returns the page's path."""
        self._save_images(path.with_name(path.stem + IMAGES))
        page = (
            _environment()
            .get_template("page.html.jinja")
            .render(
                title=self.title,
                parts=self.parts,
                links=[
                    (n, section["title"]) for n, (kind, section) in enumerate(self.parts) if kind in LINKED
                ],
                reload=self.reload,
                style=Markup(_read("page.css")),
                script=Markup(_read("page.js")),
                policy=_policy(),
            )
        )
        with replaced(path) as aside:
            aside.write_text(whole_text(page), encoding="utf-8")
        return path

    def _save_images(self, folder: Path) -> None:
        """Writes the images of all walls into a new folder; links to files that exist stay as they are."""
        if not any(wall.has_images for wall in self.walls):
            remove(folder)
            return
        with replaced(folder) as aside:
            aside.mkdir()
            for number, wall in enumerate(self.walls, 1):
                wall.save_images(aside, folder.name, f"{number}-" if len(self.walls) > 1 else "")


@cache
def _environment() -> Environment:
    # The content comes from tables, models and users: all of it is escaped.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    return environment


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _policy() -> str:
    """Content security policy: only the page's own script and style, by their digests, and images."""
    digests = {name: _digest(_read(name)) for name in ("page.js", "page.css")}
    return (
        f"default-src 'none'; script-src 'sha256-{digests['page.js']}'; "
        f"style-src 'sha256-{digests['page.css']}'; img-src 'self' data: file:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _number(value: float | str) -> str:
    """Formats a number, e.g. "0.123"; counts in full, e.g. "7,347"; texts stay as they are."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
