"""Self-contained HTML reports: tables, galleries, histograms and curves in one file without scripts."""

import base64
import html
import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import to_pil

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin-top: 2em; }
pre { background: #f4f6f9; padding: 1em; overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #e3e7ee; }
th:first-child, td:first-child { text-align: left; }
.gallery td, .gallery th { text-align: center; vertical-align: top; border: 0; padding: .2em; font-size: .85em; }
.gallery td:first-child { text-align: left; max-width: 15em; }
.gallery img { width: 96px; height: 96px; object-fit: contain; image-rendering: pixelated; display: block; margin: auto; }
svg { background: #fafbfc; border: 1px solid #e3e7ee; } .flag { color: #b00020; font-weight: 600; }
"""
COLOURS = ("#3465c8", "#d9822b", "#2a9d63", "#a23bb5", "#c23b3b", "#5d6b7e", "#139aa8", "#8a6d3b")
WIDTH, HEIGHT, MARGIN = 640, 240, 40


@dataclass
class Gallery:
    """Rows of pictures with a caption each: what was asked, and what came of it."""

    columns: list[str]
    rows: list[tuple[str, list[tuple[Float[Tensor, "3 h w"], str]]]] = field(default_factory=list)

    def row(self, title: str, cells: list[tuple[Float[Tensor, "3 h w"], str]]) -> None:
        """Adds a row: a title, and a picture (RGB in [0, 1]) with its caption for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"gallery: expected {len(self.columns)} pictures a row; got {len(cells)}")
        self.rows.append((title, cells))


class Report:
    """A page that is written section by section and saved as one file."""

    def __init__(self, title: str) -> None:
        self.title, self.parts = title, [f"<h1>{html.escape(title)}</h1>"]

    def text(self, text: str) -> None:
        self.parts.append(f"<pre>{html.escape(text)}</pre>")

    def flag(self, text: str) -> None:
        """A warning in red."""
        self.parts.append(f'<p class="flag">{html.escape(text)}</p>')

    def table(self, title: str, rows: dict[str, dict[str, float]]) -> None:
        """One row a name, one column a key."""
        columns = list(dict.fromkeys(key for values in rows.values() for key in values))
        head = "".join(f"<th>{html.escape(c)}</th>" for c in ["", *columns])
        body = "".join(
            f"<tr><td>{html.escape(name)}</td>"
            + "".join(f"<td>{values[c]:.3g}</td>" if c in values else "<td></td>" for c in columns)
            + "</tr>"
            for name, values in rows.items()
        )
        self.parts.append(f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{body}</table>")

    def gallery(self, title: str, gallery: Gallery) -> None:
        head = "".join(f"<th>{html.escape(c)}</th>" for c in ["", *gallery.columns])
        body = "".join(
            f"<tr><td>{html.escape(name)}</td>"
            + "".join(f'<td><img alt="" src="{_data_url(p)}">{html.escape(c)}</td>' for p, c in cells)
            + "</tr>"
            for name, cells in gallery.rows
        )
        self.parts.append(f'<h2>{html.escape(title)}</h2><table class="gallery"><tr>{head}</tr>{body}</table>')

    def histogram(self, title: str, values: dict[str, list[float]], low: float, high: float, bins: int = 20) -> None:
        """Shares of each series' finite values, as lines over equal bins."""
        edges = np.linspace(low, high, bins + 1)
        series = {}
        for name, numbers in values.items():
            finite = [v for v in numbers if np.isfinite(v)]
            counts, _ = np.histogram(np.clip(finite, low, high), edges)
            series[name] = [
                (float(e), float(c) / max(len(finite), 1)) for e, c in zip((edges[:-1] + edges[1:]) / 2, counts, strict=True)
            ]
        self.lines(title, series)

    def lines(self, title: str, series: dict[str, list[tuple[float, float]]]) -> None:
        """Curves of (x, y) points with a legend; series without points are left out."""
        series = {name: points for name, points in series.items() if points}
        if not series:
            return
        xs, ys = zip(*(point for points in series.values() for point in points), strict=True)
        low, high = (min(xs), min(ys)), (max(xs), max(ys))
        span = [max(b - a, 1e-9) for a, b in zip(low, high, strict=True)]

        def place(x: float, y: float) -> str:
            across = MARGIN + (x - low[0]) / span[0] * (WIDTH - 2 * MARGIN)
            down = HEIGHT - MARGIN - (y - low[1]) / span[1] * (HEIGHT - 2 * MARGIN)
            return f"{across:.1f},{down:.1f}"

        parts = [
            _label(MARGIN, HEIGHT - 12, f"{low[0]:.3g}"),
            _label(WIDTH - MARGIN, HEIGHT - 12, f"{high[0]:.3g}"),
            _label(4, HEIGHT - MARGIN, f"{low[1]:.3g}"),
            _label(4, MARGIN, f"{high[1]:.3g}"),
        ]
        for i, (name, points) in enumerate(series.items()):
            colour = COLOURS[i % len(COLOURS)]
            path = " ".join(place(x, y) for x, y in points)
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{path}"/>')
            parts.append(_label(WIDTH - MARGIN - 150, 18 + 14 * i, name, colour))
        drawing = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(parts)}</svg>'
        self.parts.append(f"<h2>{html.escape(title)}</h2>{drawing}")

    def save(self, path: Path) -> Path:
        """Writes the page and returns its path."""
        head = f'<meta charset="utf-8"><title>{html.escape(self.title)}</title><style>{STYLE}</style>'
        path.write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(self.parts)}</body></html>')
        return path


def _label(x: float, y: float, text: str, colour: str = "#1d2430") -> str:
    return f'<text x="{x}" y="{y}" font-size="12" fill="{colour}">{html.escape(text)}</text>'


def _data_url(picture: Float[Tensor, "3 h w"]) -> str:
    file = io.BytesIO()
    to_pil(picture).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
