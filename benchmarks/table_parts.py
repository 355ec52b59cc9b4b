"""Parts of the tables in the pages: cells, intervals, and the origin of a result."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from record import RESULTS, ROOT, WORLD

from rewardedit.models import digests
from rewardedit.shapes.vocabulary import WORLD_VERSION

FOLDERS = (RESULTS, WORLD / "results")
NOT_RECORDED = "Not recorded yet."
# Programs that use both small trained scorers.
BOTH = (
    *("agreement.py", "best_of_n.py", "heat.py", "throughput.py", "/adiee.py", "reward_guidance.py"),
    "hacking.py",
    "benchmarks/bench.py",
)
# programs and recipes that use a model, by parts of their commands
WITH = {
    "shapes/adiee": (
        *BOTH,
        "online_rl.py",
        "scorer=adiee",
        "{adiee:",
        "train shapes-refl",
        "train shapes/refl",
    ),  # the recipe's own reward
    "shapes/dice": ("/dice.py",),
    "shapes/vifi-clip": (
        *BOTH,
        "scorer=vifi_clip",
        "{vifi_clip:",
        "adiee_ablations.py",
        "/bpm.py",
        "/bpm_guidance.py",
    ),
}
EARLIER = {
    "shapes/editor": "editor",
    "shapes/adiee": "ADIEE scorer",
    "shapes/dice": "DICE",
    "shapes/vifi-clip": "ViFi-CLIP",
}
Result = dict[str, Any]


def read(name: str) -> Result | None:
    paths = [folder / f"{name}.json" for folder in FOLDERS]
    return next((json.loads(path.read_text()) for path in paths if path.is_file()), None)


def recorded(name: str, write: Callable[[Result], str]) -> str:
    """Text that `write` makes of a recorded result, or `NOT_RECORDED`."""
    result = read(name)
    return NOT_RECORDED if result is None else write(result)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], below: str = "") -> str:
    """A table, and a line below it."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join([*lines, "", below] if below else lines)


def interval(ends: Sequence[float], digits: int = 2) -> str:
    """An interval as text, e.g. "[-0.10, +0.25]"."""
    low, high = ends
    return f"[{low:+.{digits}f}, {high:+.{digits}f}]"


def difference(estimate: dict[str, Any], digits: int = 2) -> str:
    """A difference with its interval."""
    return f"{estimate['difference']:+.{digits}f} {interval(estimate['ci95'], digits)}"


def command_now(command: str) -> str:
    """A recorded command, with a program of the offline world named where it lies now."""

    def place(match: re.Match[str]) -> str:
        return f"{WORLD.relative_to(ROOT)}/{match[1]}" if (WORLD / match[1]).is_file() else match[0]

    return re.sub(r"(?<!shapes/)benchmarks/(\w+\.py)", place, command)


def where(result: Result) -> str:
    return f"`{command_now(result['command'])}`, {result['device']}, {result['date']}."


def outgrown(result: Result) -> list[str]:
    """Shipped models that a result used and that have changed since, among those that are checked."""
    taken = [name for name, parts in WITH.items() if any(word in result["command"] for word in parts)]
    looked_at = ["shapes/editor", *taken]
    made_with, now = result.get("models", {}), digests()
    return [name for name in looked_at if made_with.get(name) != now[name]]


def is_current(result: Result) -> bool:
    """True if the world, the editor and, if used, the trained scorer are still the current ones."""
    return result.get("world") == WORLD_VERSION and not outgrown(result)


def measured(result: Result) -> str:
    """Result of `where`, with a note if the world, the editor or the scorer has changed since."""
    if (world := result.get("world", 1)) != WORLD_VERSION:
        return f"{where(result)} World {world}: not comparable with world {WORLD_VERSION}."
    names = [EARLIER[name] for name in outgrown(result)]
    return f"{where(result)} With an earlier {' and an earlier '.join(names)}." if names else where(result)
