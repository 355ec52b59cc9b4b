"""Curves as a piece of HTML: drawn by matplotlib if it is installed (extra `plots`), or as plain lines."""

import base64
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from markupsafe import Markup

COLOURS = ("#3465c8", "#d9822b", "#2a9d63", "#a23bb5", "#c23b3b", "#5d6b7e", "#139aa8", "#8a6d3b")
GRAY = "#5d6b7e"
GRID = "#e3e7ee"
WIDTH = 640
HEIGHT = 260
LEGEND = 200  # pixels; the legend stands to the right of the axes
LEFT = 64
RIGHT = 12
TOP = 14
BOTTOM = 44  # margins of the plain drawing
MARKED = 20  # points; a curve with fewer shows each as a dot


@dataclass(frozen=True)
class Curve:
    """A named curve with an optional band around it."""

    name: str
    points: list[tuple[float, float]]  # (x, y)
    band: list[tuple[float, float]] | None = None  # (low, high) at each x


def draw(curves: list[Curve], x: str, y: str) -> Markup:
    """Draws the curves with ticks, axis labels and a legend; `x` and `y` name the quantities and units."""
    if find_spec("matplotlib") is None:
        return draw_plain(curves, x, y)
    image = base64.b64encode(draw_with_matplotlib(curves, x, y)).decode()
    alt = f"{y} by {x}: {', '.join(curve.name for curve in curves)}"
    # As a separate image, a drawing shares no identifiers with the others on the page.
    return Markup('<img class="curves" alt="{}" src="data:image/svg+xml;base64,{}">').format(alt, image)


def draw_with_matplotlib(curves: list[Curve], x: str, y: str) -> bytes:
    """Draws the curves by matplotlib; returns the content of an SVG file."""
    # No import statements: pyright would spend ten minutes on matplotlib's types.
    rc_context: Any = import_module("matplotlib").rc_context
    figure_type: Any = import_module("matplotlib.figure").Figure

    file = io.BytesIO()
    # Names are shown literally, even with a $ in them; the same curves give the same file.
    with rc_context({"text.parse_math": False, "svg.hashsalt": "rewardedit", "font.size": 9}):
        figure = figure_type(figsize=((WIDTH + LEGEND) / 100, HEIGHT / 100), layout="constrained")
        axes = figure.add_subplot(xlabel=x, ylabel=y)
        axes.grid(color=GRID)
        axes.spines[["top", "right"]].set_visible(False)
        lines = []
        for i, curve in enumerate(curves):
            colour = COLOURS[i % len(COLOURS)]
            across, up = zip(*curve.points, strict=True)
            lines += axes.plot(
                across, up, color=colour, linewidth=1.6, marker="o" if len(up) < MARKED else "", markersize=3
            )
            if curve.band is not None:
                low, high = zip(*curve.band, strict=True)
                axes.fill_between(across, low, high, color=colour, alpha=0.13, linewidth=0)
        names = [curve.name for curve in curves]
        figure.legend(lines, names, loc="outside right upper", frameon=False)
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def draw_plain(curves: list[Curve], x: str, y: str) -> Markup:
    """Draws the curves without matplotlib; returns an SVG element."""
    corners = [point for curve in curves for point in curve.points]
    corners += [(at[0], end) for curve in curves for at, ends in _banded(curve) for end in ends]
    (left, right), (bottom, top) = (
        _widened(min(values), max(values)) for values in zip(*corners, strict=True)
    )

    def place(across: float, up: float) -> tuple[str, str]:
        at = LEFT + (across - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (up - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)
        return f"{at:.1f}", f"{down:.1f}"

    parts = []
    for tick in ticks(left, right):
        at, _ = place(tick, bottom)
        parts.append(_line(at, TOP, at, HEIGHT - BOTTOM))
        parts.append(_text(at, HEIGHT - BOTTOM + 16, f"{tick:.6g}", "middle"))
    for tick in ticks(bottom, top):
        _, down = place(left, tick)
        parts.append(_line(LEFT, down, WIDTH - RIGHT, down))
        parts.append(_text(LEFT - 6, float(down) + 4, f"{tick:.6g}", "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x, "middle"))
    parts.append(_text(0, 0, y, "middle", f"translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"))
    for i, curve in enumerate(curves):
        parts.append(_plain_curve(i, curve, place))
    image = '<svg width="{}" height="{}" role="img">{}</svg>'
    return Markup(image).format(WIDTH + LEGEND, HEIGHT, Markup("").join(parts))


def ticks(low: float, high: float) -> list[float]:
    """Two to six round numbers (1, 2 or 5 times a power of ten apart) from low to high."""
    power = 10 ** math.floor(math.log10((high - low) / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= 5)
    return [float(step * i) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _banded(curve: Curve) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return [] if curve.band is None else list(zip(curve.points, curve.band, strict=True))


def _widened(low: float, high: float) -> tuple[float, float]:
    """The same range, widened if it is too narrow to divide by: a curve may be flat."""
    least = 1e-6 * max(abs(low), abs(high), 1e-6)
    return (low, high) if high - low > least else (low - max(abs(low), 1) / 2, high + max(abs(high), 1) / 2)


def _plain_curve(number: int, curve: Curve, place: Callable[[float, float], tuple[str, str]]) -> Markup:
    """The curve, its band and its legend entry."""
    colour = COLOURS[number % len(COLOURS)]
    down = TOP + 8 + 18 * number
    points = [place(*point) for point in curve.points]
    upper = [place(at[0], high) for at, (_, high) in _banded(curve)]
    lower = [place(at[0], low) for at, (low, _) in _banded(curve)]
    around = " ".join(",".join(corner) for corner in upper + lower[::-1])
    path = " ".join(",".join(point) for point in points)
    parts = [
        Markup('<polyline fill="none" stroke="{}" stroke-width="1.6" points="{}"/>').format(colour, path),
        Markup('<rect x="{}" y="{}" width="16" height="3" fill="{}"/>').format(WIDTH + 4, down - 5, colour),
        _text(WIDTH + 26, down, curve.name),
    ]
    if around:
        parts.append(Markup('<polygon fill="{}" fill-opacity=".13" points="{}"/>').format(colour, around))
    if len(points) < MARKED:
        parts += [
            Markup('<circle cx="{}" cy="{}" r="2.2" fill="{}"/>').format(*point, colour) for point in points
        ]
    return Markup("").join(parts)


def _line(x1: float | str, y1: float | str, x2: float | str, y2: float | str) -> Markup:
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}"/>').format(x1, y1, x2, y2, GRID)


def _text(x: float | str, y: float | str, text: str, anchor: str = "start", transform: str = "") -> Markup:
    image = '<text x="{}" y="{}" font-size="12" fill="{}" text-anchor="{}" transform="{}">{}</text>'
    return Markup(image).format(x, y, GRAY, anchor, transform, text)


def share_bands(shares: np.ndarray, n: int) -> list[tuple[float, float]]:
    """95 % intervals of shares counted in n rows, by the normal approximation."""
    half = 1.96 * np.sqrt(shares * (1 - shares) / max(n, 1))
    return [
        (float(max(0.0, share - h)), float(min(1.0, share + h)))
        for share, h in zip(shares, half, strict=True)
    ]
