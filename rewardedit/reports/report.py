"""Self-contained HTML reports: tables, galleries, histograms and curves in one file without scripts."""

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from torch import Tensor

from rewardedit.images import to_pil
from rewardedit.reports.curves import Curve, draw, share_bands
from rewardedit.untrusted import whole_text

TEMPLATE = Path(__file__).with_name("report.html.jinja")


@dataclass
class Gallery:
    """Rows of captioned images, each row with a title."""

    columns: list[str]
    rows: list[tuple[str, list[tuple[Float[Tensor, "3 h w"], str]]]] = field(default_factory=list)

    def row(self, title: str, cells: list[tuple[Float[Tensor, "3 h w"], str]]) -> None:
        """Adds a row: a title, and an image (RGB in [0, 1]) with its caption for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"gallery: expected {len(self.columns)} images a row; got {len(cells)}")
        self.rows.append((title, cells))


class Report:
    """A page that is written section by section and saved as one file."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[tuple[str, dict[str, Any]]] = []  # kind and content of each section

    def _add(self, kind: str, title: str = "", **shown: Any) -> None:
        self.parts.append((kind, {"title": title, **shown}))

    def text(self, text: str) -> None:
        self._add("text", text=text)

    def flag(self, text: str) -> None:
        """Adds a warning in red."""
        self._add("flag", text=text)

    def table(self, title: str, rows: Mapping[str, Mapping[str, float | None]]) -> None:
        """Adds a table with one row per name and one column per key; cells of None are empty."""
        columns = list(dict.fromkeys(key for values in rows.values() for key in values))
        self._add("table", title, columns=columns, rows=rows)

    def gallery(self, title: str, gallery: Gallery) -> None:
        self._add("gallery", title, gallery=gallery)

    def histogram(
        self,
        title: str,
        values: dict[str, list[float]],
        low: float,
        high: float,
        bins: int = 20,
        x: str = "score",
        marks: dict[str, float] | None = None,
    ) -> None:
        """Adds the shares of each series' finite values in equal bins, as curves with 95 % intervals.

        Args:
            marks: named places on the axis, such as thresholds, drawn as vertical lines.
        """
        edges = np.linspace(low, high, bins + 1)
        middles = ((edges[:-1] + edges[1:]) / 2).tolist()
        curves = []
        for name, numbers in values.items():
            finite = [v for v in numbers if np.isfinite(v)]
            shares = np.histogram(np.clip(finite, low, high), edges)[0] / max(len(finite), 1)
            curves.append(
                Curve(
                    name, list(zip(middles, shares.tolist(), strict=True)), share_bands(shares, len(finite))
                )
            )
        if curves:
            top = max(share for curve in curves for _, share in curve.points)
            upright = [Curve(name, [(at, 0.0), (at, top)]) for name, at in (marks or {}).items()]
            self._add("drawing", title, drawing=draw([*curves, *upright], x, "share of edits, 95 % interval"))

    def lines(
        self, title: str, series: dict[str, list[tuple[float, float]]], x: str = "step", y: str = ""
    ) -> None:
        """Adds curves of (x, y) points with a legend; points that are not finite, and series without
        points, are left out.

        `x` and `y` name the quantities and units; without `y`, the title does.
        """
        curves = []
        for name, points in series.items():
            finite = list(filter(_is_finite, points))
            if finite:
                curves.append(Curve(name, finite))
        if curves:
            self._add("drawing", title, drawing=draw(curves, x, y or title))

    def save(self, path: Path) -> Path:
        """Writes the page and returns its path."""
        # The content comes from tables, models and users: all of it is escaped.
        environment = Environment(
            loader=FileSystemLoader(TEMPLATE.parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["data_url"] = _data_url
        environment.filters["number"] = _number
        page = environment.get_template(TEMPLATE.name).render(title=self.title, parts=self.parts)
        path.write_text(whole_text(page), encoding="utf-8")
        return path


def _number(value: float) -> str:
    """Formats a number, e.g. "0.123"; counts in full, e.g. "7,347"."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _data_url(image: Float[Tensor, "3 h w"]) -> str:
    file = io.BytesIO()
    to_pil(image).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _is_finite(point: tuple[float | None, float | None]) -> bool:
    return all(value is not None and math.isfinite(value) for value in point)
