"""Small charts without any dependency: curves with bands, and differences with their intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from rewardedit.reports.wall import tone

COLOURS = 8  # classes s0 … s7 of the style sheet
WIDTH = 340
HEIGHT = 190
LEFT = 44
RIGHT = 10
TOP = 8
BOTTOM = 34  # margins of the axes
MARKED = 20  # points; a curve with fewer shows each as a dot

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """A named curve with an optional band around it."""

    name: str
    points: Points  # (x, y)
    band: Points | None = None  # (low, high) at each x


@dataclass(frozen=True)
class Drawing:
    """A chart of curves with title, explanation and legend."""

    title: str
    says: str
    drawing: Markup  # an SVG element
    legend: Sequence[str]


@dataclass(frozen=True)
class Interval:
    """A difference with its interval; None where it could not be computed.

    `higher_is` says what an increase means: 1 for better, −1 for worse, 0 for neither.
    """

    name: str
    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    higher_is: int = 1


@dataclass(frozen=True)
class IntervalRow:
    """An interval as it is drawn: places from 0 to 100, and the colour."""

    name: str
    text: str
    mark: float | None
    low: float
    high: float
    tone: str


class Intervals:
    """Differences around a common zero; coloured where the interval lies on one side of it."""

    def __init__(self, title: str, says: str, intervals: Sequence[Interval]) -> None:
        self.title = title
        self.says = says
        ends = [0.0]
        for one in intervals:
            ends += [end for end in (one.value, one.low, one.high) if end is not None]
        low, high = _widened(min(ends), max(ends))
        margin = 0.05 * (high - low)
        self._low = low - margin
        self._span = high - low + 2 * margin
        self.zero = self._place(0.0)
        self.rows = [self._row(one) for one in intervals]

    def _place(self, value: float) -> float:
        return round(100 * (value - self._low) / self._span, 2)

    def _row(self, one: Interval) -> IntervalRow:
        if one.value is None:
            return IntervalRow(one.name, one.text, None, 0, 0, "")
        low = one.value if one.low is None else one.low
        high = one.value if one.high is None else one.high
        is_clear = one.low is not None and (low > 0 or high < 0)
        kind = tone(one.higher_is * one.value) if is_clear else ""
        return IntervalRow(
            one.name, one.text, self._place(one.value), self._place(low), self._place(high), kind
        )


def curves(title: str, series: Mapping[str, Points], says: str = "", x: str = "step") -> Drawing | None:
    """Curves of (x, y) points with a legend; points that are not finite, and series without points, are left
    out. None if nothing is left.
    """
    drawn = []
    for name, points in series.items():
        finite = list(filter(_is_finite, points))
        if finite:
            drawn.append(Curve(name, finite))
    return draw(drawn, title, says, x) if drawn else None


def histogram(
    title: str,
    values: Mapping[str, Sequence[float]],
    low: float,
    high: float,
    says: str = "",
    x: str = "score",
    bins: int = 20,
    marks: Mapping[str, float] | None = None,
) -> Drawing | None:
    """The shares of each series' finite values in equal bins, as curves with 95 % intervals; values beyond
    the ends count in the last bins. None without any series.

    Args:
        marks: named places on the axis, such as thresholds, drawn as vertical lines.
    """
    edges = np.linspace(low, high, bins + 1)
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    drawn = []
    top = 0.0
    for name, numbers in values.items():
        finite = [v for v in numbers if math.isfinite(v)]
        shares = np.histogram(np.clip(finite, low, high), edges)[0] / max(len(finite), 1)
        top = max(top, float(shares.max()))
        points = list(zip(middles, shares.tolist(), strict=True))
        drawn.append(Curve(name, points, share_bands(shares, len(finite))))

    if not drawn:
        return None
    upright = [Curve(name, [(at, 0.0), (at, top)]) for name, at in (marks or {}).items()]
    return draw([*drawn, *upright], title, says, x)


def draw(curves: list[Curve], title: str, says: str, x: str) -> Drawing:
    """Draws curves with ticks; `x` names the quantity and unit of the horizontal axis."""
    corners: Points = []
    for curve in curves:
        corners += curve.points
        for (at, _), (low, high) in _banded(curve):
            corners += [(at, low), (at, high)]
    places, heights = zip(*corners, strict=True)
    left, right = _widened(min(places), max(places))
    bottom, top = _widened(min(heights), max(heights))

    def place(across: float, up: float) -> tuple[str, str]:
        at = LEFT + (across - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (up - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)
        return f"{at:.1f}", f"{down:.1f}"

    parts = []
    for tick in ticks(left, right):
        at, _ = place(tick, bottom)
        parts.append(_line(at, TOP, at, HEIGHT - BOTTOM))
        parts.append(_text(at, HEIGHT - BOTTOM + 14, f"{tick:.6g}", "middle"))
    for tick in ticks(bottom, top):
        _, down = place(left, tick)
        parts.append(_line(LEFT, down, WIDTH - RIGHT, down))
        parts.append(_text(LEFT - 6, float(down) + 4, f"{tick:.6g}", "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x, "middle"))
    parts += [_curve(i, curve, place) for i, curve in enumerate(curves)]

    image = '<svg class="drawing" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    drawing = Markup(image).format(WIDTH, HEIGHT, title, Markup("").join(parts))
    return Drawing(title, says, drawing, [curve.name for curve in curves])


def ticks(low: float, high: float) -> list[float]:
    """Two to six round numbers (1, 2 or 5 times a power of ten apart) from low to high."""
    power = 10 ** math.floor(math.log10((high - low) / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= 5)
    return [float(step * i) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def share_bands(shares: np.ndarray, n: int) -> Points:
    """95 % intervals of shares counted in n rows, by the normal approximation."""
    half = 1.96 * np.sqrt(shares * (1 - shares) / max(n, 1))
    low = np.maximum(shares - half, 0.0)
    high = np.minimum(shares + half, 1.0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _is_finite(point: tuple[float | None, float | None]) -> bool:
    return all(value is not None and math.isfinite(value) for value in point)


def _banded(curve: Curve) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return [] if curve.band is None else list(zip(curve.points, curve.band, strict=True))


def _widened(low: float, high: float) -> tuple[float, float]:
    """The same range, widened if it is too narrow to divide by: a curve may be flat or a single point.

    Steps, shares and scores that are not negative get no negative ticks.
    """
    if high - low > 1e-6 * max(abs(low), abs(high), 1e-6):
        return low, high
    lowest = low - max(abs(low), 1) / 2
    return max(lowest, 0) if low >= 0 else lowest, high + max(abs(high), 1) / 2


def _curve(number: int, curve: Curve, place: Callable[[float, float], tuple[str, str]]) -> Markup:
    """The curve and its band."""
    points = [place(*point) for point in curve.points]
    upper = []
    lower = []
    for (at, _), (low, high) in _banded(curve):
        upper.append(place(at, high))
        lower.append(place(at, low))

    parts = [Markup('<polyline points="{}"/>').format(_path(points))]
    if upper:
        parts.append(Markup('<polygon points="{}"/>').format(_path(upper + lower[::-1])))
    if len(points) < MARKED:
        parts += [Markup('<circle cx="{}" cy="{}" r="2.4"/>').format(*point) for point in points]
    return Markup('<g class="s{}">{}</g>').format(number % COLOURS, Markup("").join(parts))


def _path(points: Sequence[tuple[str, str]]) -> str:
    return " ".join(map(",".join, points))


def _line(x1: float | str, y1: float | str, x2: float | str, y2: float | str) -> Markup:
    return Markup('<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(x1, y1, x2, y2)


def _text(x: float | str, y: float | str, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
