"""Recipes on data that the command line names in the place of their own."""

from collections.abc import Mapping
from typing import Any

ON_HELD_OUT_ROWS = ("evaluate", "monitor")  # groups whose `data` names rows that are not trained on


def held_out_of_own(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe whose comparison and monitor take rows held out of the data, if the command line names other
    data and no other rows for them. No rows are held out of streamed or labelled ones, for which the recipe's
    stay.

    Args:
        values: the recipe's, already overridden.
        given: values of the command line by their keys, such as `data.path`.
    """
    data = values.get("data")
    other_data = "data" in given or "data.name" in given
    if not other_data or not isinstance(data, dict) or data.get("stream") or data.get("name") == "labelled":
        return values

    values = dict(values)
    for group in ON_HELD_OUT_ROWS:
        settings = values.get(group)
        named = any(key == group or f"{key}.".startswith(f"{group}.data.") for key in given)
        if isinstance(settings, dict) and settings.get("data") and not named:
            values[group] = {**settings, "data": None}
    return values
