"""Groups of two, three or four edits of one source, whose rankings are stored pair by pair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rewardedit.data.editreward import RANKING, read_ranking
from rewardedit.evaluation.decisions import TIE, A, B
from rewardedit.evaluation.protocols.pairs import Pair, item_ids

SIZES = (2, 3, 4)
VOTES: dict[Literal["left", "right", "tie"], str] = {"left": A, "right": B, "tie": TIE}
Groups = dict[str, list[Pair]]


@dataclass(frozen=True)
class Row:
    """A row of the benchmark."""

    id: str
    number: int
    pair: Pair


def grouped(rows: Sequence[Row]) -> tuple[Groups, list[str]]:
    """Pairs by group, each once, without groups in which a pair has unlike rankings or that lack a pair; and
    notes on these.
    """
    by_group: dict[str, dict[tuple[str, str], Pair]] = {}
    unlike = set()
    for row in rows:
        group = by_group.setdefault(row.pair.source, {})
        before = group.setdefault((row.pair.left, row.pair.right), row.pair)
        if before.vote != row.pair.vote:
            unlike.add(row.pair.source)
    groups = {}
    notes = []
    for name, pairs in by_group.items():
        k = len(item_ids(list(pairs.values())))
        if name in unlike:
            notes.append(f"group {name} is left out: one of its pairs has unlike rankings")
        elif k not in SIZES or len(pairs) != pairs_of(k):
            notes.append(f"group {name} is left out: it has {len(pairs)} pairs of {k} edits")
        else:
            groups[name] = list(pairs.values())
    return groups, notes


def pairs_of(k: int) -> int:
    """Number of pairs of k edits."""
    return k * (k - 1) // 2


def read_row(number: int, record: Mapping[str, Any]) -> Row:
    """A row of either layout.

    Raises:
        ValueError: if its id or ranking cannot be read.
    """
    name = record["id"]
    if not isinstance(name, str) or not name:
        raise ValueError(f"id: expected text; got {name!r}")
    preferred = read_ranking(record["ranking"])
    match = RANKING.fullmatch(record["ranking"])
    assert match is not None
    first, second = sorted((match[1], match[3]))
    group = name.partition("_")[0]
    pair = Pair(f"{group}-{first}{second}", f"{group}-{first}", f"{group}-{second}", VOTES[preferred], group)
    return Row(f"{name}, row {number}", number, pair)


def places_of(rows: Sequence[Row]) -> dict[str, tuple[int, str]]:
    """The row and column that hold each edit."""
    places: dict[str, tuple[int, str]] = {}
    for row in rows:
        places.setdefault(row.pair.left, (row.number, "candidate_1"))
        places.setdefault(row.pair.right, (row.number, "candidate_2"))
    return places
