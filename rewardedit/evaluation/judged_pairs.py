"""Comparison of editors by a judge that sees two edits at a time, each pair in both orders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rewardedit.batch import PixelSample
from rewardedit.data.editor_rows import EditorRows
from rewardedit.data.reading import PreparedRows, Unreadable
from rewardedit.evaluation.editors import EditorScores, Pair, compare_editors, holm
from rewardedit.files import to_json
from rewardedit.images import resize, to_float
from rewardedit.processes import processes
from rewardedit.scorers.vlm_pairs import PairJudge, PairOfEdits, PairVerdict
from rewardedit.stages.stage import stage
from rewardedit.untrusted import read_json_file

SHARD = 16  # pairs that are judged, and kept, together
Record = dict[str, Any]


@dataclass(frozen=True)
class JudgedPair:
    """Two editors by the verdicts of a judge."""

    pair: Pair  # its ties are the pairs on which the orders disagree; `difference` is wins less losses
    invalid: int  # pairs without an answer
    first_shown: float  # share of the answers, 0 to 1, that prefer the edit shown first: 0.5 without a bias

    def as_dict(self) -> dict[str, Any]:
        """All numbers as JSON has them."""
        pair = self.pair
        counts = {"wins": pair.wins, "ties": pair.ties, "losses": pair.losses, "invalid": self.invalid}
        rate = pair.win_rate.as_dict()
        shown = {"first_shown": self.first_shown, "p_holm": pair.p}
        return {"a": pair.a, "b": pair.b, "win_rate": rate, **counts, **shown}


def judge_pairs(
    rows: EditorRows, folder: Path, made_of: Any, load: Callable[[], PairJudge], size: int | None = None
) -> list[Record]:
    """Verdicts on the edits of all two editors by the same request, kept in a folder: what is judged is not
    judged again.

    Args:
        made_of: everything that the verdicts depend on.
        load: returns the judge, in the processes that have pairs to judge.
        size: pixels a side to which images are brought; None: the source's.

    Returns:
        A record for each pair, with the editors a and b, the request, the source's id, `better` (a, b, tie,
        or None), the answers in both orders, and the reason where there is no verdict.

    Raises:
        ValueError: if no two editors have edits of one request.
    """
    asked = _pairs_in(rows)
    if not asked:
        raise ValueError("expected edits of one request by two editors; there are none")
    shards = [asked[i : i + SHARD] for i in range(0, len(asked), SHARD)]
    prepared = PreparedRows(rows, size)

    def judge(number: int, path: Path) -> None:
        hidden = not processes().is_main_process
        bar = tqdm([shards[number]], desc="judging", unit="shard", delay=5, leave=False, disable=hidden)
        for shard in bar:
            path.write_text(to_json(_judged(rows, prepared, shard, load())))

    paths = stage(folder, made_of, judge, len(shards), "pairs-{:05d}.json")
    records: list[Record] = []
    for path in paths:
        records += read_json_file(path)
    return records


def _pairs_in(rows: EditorRows) -> list[tuple[int, int]]:
    """Numbers of the rows of all two editors for the same requests."""
    by_request: dict[str, list[int]] = {}
    for number, request in enumerate(rows.requests):
        by_request.setdefault(request, []).append(number)
    pairs = []
    for numbers in by_request.values():
        pairs += combinations(numbers, 2)
    return pairs


def _judged(
    rows: EditorRows, prepared: PreparedRows, pairs: Sequence[tuple[int, int]], judge: PairJudge
) -> list[Record]:
    """The records of pairs; one with an image that cannot be read has no verdict."""
    edits: dict[tuple[int, int], PairOfEdits] = {}
    verdicts: dict[tuple[int, int], PairVerdict] = {}
    for pair in pairs:
        first, second = (prepared[number] for number in pair)
        faults = [sample.reason for sample in (first, second) if isinstance(sample, Unreadable)]
        if faults:
            verdicts[pair] = PairVerdict(None, (None, None), faults[0])
        else:
            edits[pair] = _of_one_size(first, second)
    verdicts |= zip(edits, judge(list(edits.values())), strict=True)

    records = []
    for pair in pairs:
        first, second = (rows.details(number) for number in pair)
        found = verdicts[pair]
        names = {"first": "a", "second": "b"}
        records.append(
            {
                "a": first["editor"],
                "b": second["editor"],
                "request": first["request"],
                "source": first["source_id"],
                "better": names.get(str(found.better), found.better),
                "answers": list(found.answers),
                "reason": found.reason,
            }
        )
    return records


def _of_one_size(first: PixelSample, second: PixelSample) -> PairOfEdits:
    """Two edits at the size of the first one's source."""
    size = (first.source.shape[-2], first.source.shape[-1])
    source, edited, other = (to_float(image) for image in (first.source, first.edited, second.edited))
    return PairOfEdits(first.instruction, source, edited, resize(other[None], size)[0])


def compare_judged(records: Sequence[Record], seed: int = 0) -> list[JudgedPair]:
    """Wins of all two editors, with intervals over source images; p is corrected by Holm over all of them.

    Args:
        records: of `judge_pairs`.
        seed: of the resamples of source images.
    """
    by_editors: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_editors.setdefault((record["a"], record["b"]), []).append(record)
    found = []
    for editors, own in by_editors.items():
        scores = {"a": 1.0, "tie": 0.5, "b": 0.0, None: np.nan}
        won = np.array([scores[record["better"]] for record in own])
        sources = [record["source"] for record in own]
        given = EditorScores(
            editors, {"": np.stack([won, 1 - won], 1)}, np.ones((len(own), 2), bool), sources
        )
        pair = compare_editors(given, seed=seed).scorers[""].pair(*editors)
        letters = [letter for record in own for letter in record["answers"] if letter is not None]
        share = letters.count("A") / len(letters) if letters else float("nan")
        found.append(JudgedPair(pair, int(np.isnan(won).sum()), share))
    corrected = holm([one.pair.p for one in found])
    return [replace(one, pair=replace(one.pair, p=p)) for one, p in zip(found, corrected, strict=True)]


def judged_sentences(found: Sequence[JudgedPair], judge: str) -> list[str]:
    """The result in words, a sentence for each two editors."""
    lines = []
    for one in found:
        pair = one.pair
        n = pair.wins + pair.ties + pair.losses
        if not n:
            lines.append(f"Pairs by {judge}: no verdict on {pair.a} and {pair.b} ({one.invalid} pairs).")
            continue
        first, second = (pair.a, pair.b) if pair.win_rate.value >= 0.5 else (pair.b, pair.a)
        rate = pair.win_rate.value if first == pair.a else 1 - pair.win_rate.value
        low, high = pair.win_rate.ci95 if first == pair.a else [1 - end for end in pair.win_rate.ci95[::-1]]
        verdict = "is better than" if pair.clear else "wins more often, but no difference can be told to"
        invalid = f", {one.invalid} pairs have no verdict" if one.invalid else ""
        lines.append(
            f"Pairs by {judge}: {first} {verdict} {second}: wins {100 * rate:.0f} % "
            f"[{100 * low:.0f} to {100 * high:.0f}] of {n} pairs, a tie counting half; the orders disagree "
            f"on {pair.ties} of them; {100 * one.first_shown:.0f} % of the answers prefer the edit shown "
            f"first{invalid}."
        )
    return lines
