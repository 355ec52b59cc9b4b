"""Checks of the labels that a scorer learns from."""

from rewardedit.batch import EditSample
from rewardedit.data import Rows


def require_label(sample: EditSample) -> float:
    """Returns the row's label.

    Raises:
        ValueError: if it has none, or if its label or that of one of its axes lies outside 0 to 10.
    """
    if sample.label is None:
        raise ValueError(f"row {sample.id}: expected a label from 0 to 10; it has none")
    for name, label in {"label": sample.label, **sample.axes}.items():
        if not 0 <= label <= 10:
            raise ValueError(f"row {sample.id}: {name}: expected 0 to 10; got {label:g}")
    return sample.label


def require_axes(rows: Rows, usable: list[int], axes: tuple[str, ...]) -> None:
    """Raises ValueError if no usable row has a label of one of the axes, which would train nothing."""
    missing = set(axes)
    for row in usable:
        if not missing:
            break
        missing -= rows[row].axes.keys()
    if missing:
        raise ValueError(f"axes: no row has a label of {', '.join(sorted(missing))}")
