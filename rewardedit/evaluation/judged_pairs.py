"""Comparison of editors by a judge that sees two edits at a time, each pair in both orders."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rewardedit.batch import PixelSample
from rewardedit.data.editor_rows import EditorRows
from rewardedit.data.reading import PreparedRows, Unreadable
from rewardedit.evaluation.editors import EditorScores, Pair, compare_editors, holm
from rewardedit.files import to_json
from rewardedit.images import resize
from rewardedit.processes import processes
from rewardedit.scorers.vlm_pairs import PairJudge, PairOfEdits, PairVerdict
from rewardedit.stages.stage import stage
from rewardedit.untrusted import read_json_file

SHARD = 16  # pairs that are kept together
PIXELS = 2**24  # of the sources of pairs that are asked about at a time; the last pair may go beyond
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
    rows: EditorRows,
    editors: tuple[str, str],
    folder: Path,
    made_of: Any,
    load: Callable[[], PairJudge],
    size: int | None = None,
) -> list[Record]:
    """Verdicts on two editors' edits by the same requests, kept in a folder: what is judged is not judged
    again.

    Args:
        made_of: everything that the verdicts depend on.
        load: returns the judge, in the processes that have pairs to judge.
        size: pixels a side to which images are brought; None: the source's.

    Returns:
        A record for each pair, with the editors a and b, the request, the source's id, `better` (a, b, tie,
        or None), the answers in both orders, and the reason where there is no verdict. None if the editors
        have no request in common.
    """
    questions = _pairs_of(rows, *editors)
    if not questions:
        return []
    shards = [questions[i : i + SHARD] for i in range(0, len(questions), SHARD)]
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


def _pairs_of(rows: EditorRows, a: str, b: str) -> list[tuple[int, int]]:
    """Numbers of two editors' rows for the same requests."""
    by_editor: dict[str, dict[str, int]] = {a: {}, b: {}}
    for number, (editor, _) in enumerate(rows.rows):
        if editor in by_editor:
            by_editor[editor][rows.requests[number]] = number
    others = by_editor[b]
    return [(number, others[request]) for request, number in by_editor[a].items() if request in others]


def _judged(
    rows: EditorRows, prepared: PreparedRows, pairs: Sequence[tuple[int, int]], judge: PairJudge
) -> list[Record]:
    """The records of pairs; one with an image that cannot be read has no verdict.

    The images of as many pairs as have `PIXELS` are in memory at a time.
    """
    edits: dict[tuple[int, int], PairOfEdits] = {}
    verdicts: dict[tuple[int, int], PairVerdict] = {}
    pixels = 0
    for pair in pairs:
        first, second = (prepared[number] for number in pair)
        faults = [sample.reason for sample in (first, second) if isinstance(sample, Unreadable)]
        if faults:
            verdicts[pair] = PairVerdict(None, (None, None), faults[0])
            continue
        edits[pair] = _of_one_size(first, second)
        pixels += first.source[0].numel()
        if pixels >= PIXELS:
            verdicts |= zip(edits, judge(list(edits.values())), strict=True)
            edits.clear()
            pixels = 0
    verdicts |= zip(edits, judge(list(edits.values())), strict=True)

    records = []
    for pair in pairs:
        first, second = map(rows.details, pair)
        verdict = verdicts[pair]
        names = {"first": "a", "second": "b"}
        records.append(
            {
                "a": first["editor"],
                "b": second["editor"],
                "request": first["request"],
                "source": first["source_id"],
                "better": names.get(str(verdict.better), verdict.better),
                "answers": list(verdict.answers),
                "reason": verdict.reason,
            }
        )
    return records


def _of_one_size(first: PixelSample, second: PixelSample) -> PairOfEdits:
    """Two edits at the size of the first one's source."""
    size = (first.source.shape[-2], first.source.shape[-1])
    assert second.edited is not None
    return PairOfEdits(first.instruction, first.source, first.edited, resize(second.edited[None], size)[0])


def compare_judged(records: Sequence[Record], seed: int = 0) -> list[JudgedPair]:
    """Wins of all two editors, with intervals over source images; p is corrected by Holm over all of them.

    Args:
        records: of `judge_pairs`.
        seed: of the resamples of source images.
    """
    by_editors: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_editors.setdefault((record["a"], record["b"]), []).append(record)
    pairs = []
    for editors, verdicts in by_editors.items():
        scores = {"a": 1.0, "tie": 0.5, "b": 0.0, None: np.nan}
        won = np.array([scores[record["better"]] for record in verdicts])
        sources = [record["source"] for record in verdicts]
        given = EditorScores(
            editors, {"": np.stack([won, 1 - won], 1)}, np.ones((len(verdicts), 2), bool), sources
        )
        pair = compare_editors(given, seed=seed).scorers[""].pair(*editors)
        letters: Counter[str | None] = Counter()
        for record in verdicts:
            letters.update(record["answers"])
        del letters[None]  # no answer
        share = letters["A"] / letters.total() if letters.total() else float("nan")
        pairs.append(JudgedPair(pair, int(np.isnan(won).sum()), share))
    corrected = holm([one.pair.p for one in pairs])
    return [replace(one, pair=replace(one.pair, p=p)) for one, p in zip(pairs, corrected, strict=True)]


def judged_sentences(pairs: Sequence[JudgedPair], judge: str) -> list[str]:
    """The result in words, a sentence for each two editors."""
    lines = []
    for one in pairs:
        pair = one.pair
        n = pair.wins + pair.ties + pair.losses
        if not n:
            lines.append(f"Pairs by {judge}: no verdict on {pair.a} and {pair.b} ({_pairs(one.invalid)}).")
            continue
        invalid = f"; {_pairs(one.invalid)} without a verdict" if one.invalid else ""
        lines.append(
            f"Pairs by {judge}: {_verdict(pair)} of {_pairs(n)}, a tie counting half; the orders disagree "
            f"on {pair.ties} of them; {100 * one.first_shown:.0f} % of the answers prefer the edit shown "
            f"first{invalid}."
        )
    return lines


def _pairs(n: int) -> str:
    return f"{n} pair{'' if n == 1 else 's'}"


def _verdict(pair: Pair) -> str:
    """The better editor with its share of wins and their interval, or why there is no interval."""
    if pair.win_rate.value < 0.5:
        pair = pair.turned
    rate = pair.win_rate
    low, high = rate.ci95
    within = f"[{100 * low:.0f} to {100 * high:.0f}]" if isfinite(low) else f"({rate.reason})"
    wins = f"{pair.a} wins {100 * rate.value:.0f} % {within}"
    if pair.clear:
        return f"{pair.a} is better than {pair.b}: {wins}"
    if rate.value == 0.5:
        return f"no difference can be told between {pair.a} and {pair.b}: {wins}"
    return f"{pair.a} wins more often, but no difference can be told to {pair.b}: {wins}"
