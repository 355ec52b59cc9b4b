"""A comparison of editors on the command line: their edits are scored, and the result shown and written."""

import shlex
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from rewardedit.cli.score import load_scorers, on_device, read_batch, tell
from rewardedit.scorer_spec import ScorerSpec

Records = list[dict[str, Any]]
SCORES = "scores"  # the folder of the scores
PAIRS = "pairs"  # the folder of verdicts on pairs
JUDGED = "pairs.json"
ASKING = ("timeout", "retries", "longest_wait", "key_variable")  # options of a judge that change no verdict
RESULT = "comparison.json"
IDENTITY = ("scorers", "models", "size", "fingerprints")  # settings that scores of two runs must share


@dataclass(frozen=True)
class Comparison:
    """Editors and scorers, and how they are compared."""

    rows: Any  # EditorRows
    specs: dict[str, ScorerSpec]
    inputs: dict[str, Any]  # by editor, what determines its rows; files under `path`
    size: int | None = None  # pixels a side at which images are scored; None: the source's
    kind: str | None = None  # column with the kind of edit

    def score(self, folder: Path) -> Records:
        """Records of all rows by all scorers, on the main process. The scores of each editor by each scorer
        are a stage of their own, so that another editor or scorer leaves these as they are.

        Raises:
            ValueError: if nothing can be scored.
        """
        from rewardedit.processes import processes
        from rewardedit.scoring import read_records, score_shards
        from rewardedit.stages.lazy import Lazy
        from rewardedit.stages.stage import usage_in
        from rewardedit.untrusted import file_name

        records: Records = []
        is_main = processes().is_main_process
        try:
            for scorer in self.specs:
                loaded = Lazy(partial(load_scorers, {scorer: self.specs[scorer]}, {}))
                load = partial(on_device, loaded)
                for editor in self.rows.editors:
                    place = folder / file_name(scorer) / file_name(editor)
                    made_of = self._made_of(editor, scorer, loaded)
                    shards = score_shards(place, made_of, self.rows.of(editor), load=load, size=self.size)
                    for shard in shards if is_main else ():
                        records += read_records(shard)
        finally:
            if is_main:
                tell(None, usage_in(folder))  # it must be paid for, whatever came after
        if is_main and not any(record["valid"] for record in records):
            raise ValueError(f"nothing could be scored; {records[0]['id']}: {records[0]['reason']}")
        return records

    def _made_of(self, editor: str, scorer: str, loaded: Any) -> dict[str, Any]:
        """Everything that the scores of an editor by a scorer depend on."""
        from rewardedit.data.digests import file_digests
        from rewardedit.scorers.load import packaged_files, scorer_fingerprints

        spec = self.specs[scorer]
        return {
            **self.inputs[editor],
            "rows": len(self.rows.of(editor)),
            "scorers": {scorer: spec},
            "models": packaged_files(spec),
            "size": self.size,
            "files": file_digests([self.inputs[editor], spec], pictures=True),
            "fingerprints": scorer_fingerprints({scorer: spec}, loaded),
        }

    def judge_pairs(self, folder: Path, judge: dict[str, Any]) -> Records:
        """Verdicts on the edits of all two editors, by a judge of these options. Those on two editors by a
        judge are a stage of their own, whatever order the editors are named in.

        Raises:
            ValueError: if no two editors have edits of one request.
        """
        from rewardedit import devices
        from rewardedit.data.digests import file_digests
        from rewardedit.evaluation.judged_pairs import judge_pairs
        from rewardedit.processes import processes
        from rewardedit.scorers.vlm_pairs import PairJudge
        from rewardedit.stages.lazy import Lazy
        from rewardedit.stages.stage import usage_in
        from rewardedit.untrusted import file_name

        loaded = Lazy(partial(PairJudge.from_pretrained, **judge))
        settings = {name: value for name, value in judge.items() if name not in ASKING}
        records: Records = []
        try:
            for editors in combinations(sorted(self.rows.editors), 2):
                a, b = editors
                inputs = {editor: self.inputs[editor] for editor in editors}
                made_of = {
                    "inputs": inputs,
                    "rows": [len(self.rows.of(editor)) for editor in editors],
                    "judge": settings,
                    "size": self.size,
                    "files": file_digests([inputs, settings], pictures=True),
                    "fingerprint": loaded().fingerprint,
                }
                place = folder / file_name(_in_words(settings)) / file_name(a) / file_name(b)
                records += judge_pairs(
                    self.rows,
                    editors,
                    place,
                    made_of,
                    lambda: loaded().to(devices.default_device()),
                    self.size,
                )
        finally:
            if processes().is_main_process:
                tell(None, usage_in(folder))
        if not records:
            raise ValueError("--judge-pairs: expected edits of one request by two editors; there are none")
        return records

    def identity(self, folder: Path) -> dict[str, Any]:
        """The settings and models of each scorer whose scores lie in the folder."""
        from rewardedit.stages.stage import recorded
        from rewardedit.untrusted import file_name

        editor = next(iter(self.rows.editors))
        digests = {}
        for scorer in self.specs:
            made_of = recorded(folder / file_name(scorer) / file_name(editor)) or {}
            digests[scorer] = {name: made_of.get(name) for name in IDENTITY}
        return digests

    def result(self, records: Records, tie: float = 0.0) -> tuple[Any, Any]:
        """The requests and the comparison of the editors on them; see `compare_editors`."""
        from rewardedit.evaluation.editor_records import requests_of
        from rewardedit.evaluation.editors import compare_editors

        requests = requests_of(records, self.kind)
        return requests, compare_editors(requests.scores, tie)

    def write(
        self, records: Records, requests: Any, comparison: Any, folder: Path, draw: list[str] | None = None
    ) -> None:
        """Writes the scores, the comparison and its page.

        Args:
            draw: see `read_draw`.
        """
        from rewardedit.evaluation.editor_page import write_page
        from rewardedit.evaluation.editor_wall import Shown
        from rewardedit.files import write_json
        from rewardedit.scoring import write_lines, write_records

        reasons = {}
        for record in records:
            if not record["valid"]:
                row = record["row"]
                reasons[record["scorer"], row["editor"], row["request"]] = record["reason"]
        drawn = read_draw(draw, requests) if draw else frozenset()
        draw_sides = drawing(self.rows, self.specs, self.size) if draw else None
        write_records(records, folder / "scores.parquet")
        write_lines(records, folder / "scores.csv")
        made_of = {"made_of": self.identity(folder / SCORES)}
        write_json(folder / RESULT, {**comparison.as_dict(), **made_of})
        of = Shown(self.rows, requests, reasons, drawing_commands(self.specs), draw_sides, drawn)
        print(f"page: {write_page(comparison, of, folder)}")


def show(comparison: Any) -> None:
    """Prints a comparison in words, and as a table for each scorer."""
    from rewardedit.evaluation.editor_words import NOTE, sentences, table, text_table
    from rewardedit.reports.plain_names import scorer_name

    print("\n".join(sentences(comparison)))
    for scorer, one in comparison.scorers.items():
        print("\n".join(["", *text_table(table(one), scorer_name(scorer).name)]))
    print(f"\n{NOTE}")


def _in_words(settings: dict[str, Any]) -> str:
    """The options of a judge in one line, the model first."""
    from rewardedit.models import JUDGE

    options = {"checkpoint": JUDGE, **settings}
    model = str(options.pop("checkpoint"))
    return " ".join([model, *(f"{name}={options[name]}" for name in sorted(options))])


def judge_name(judge: dict[str, Any]) -> str:
    """The model of a judge of pairs, by its options; of an endpoint, without the address."""
    from rewardedit.models import JUDGE

    return str(judge.get("checkpoint", JUDGE)).rpartition("#")[2]


def show_judged(records: Records, judge: dict[str, Any], folder: Path | None) -> None:
    """Prints the comparison by pairs in words, and writes it with all verdicts."""
    from rewardedit.evaluation.judged_pairs import compare_judged, judged_sentences
    from rewardedit.files import write_json

    pairs = compare_judged(records)
    print("\n" + "\n".join(judged_sentences(pairs, judge_name(judge))))
    if folder is not None:
        write_json(folder / JUDGED, {"pairs": [one.as_dict() for one in pairs], "verdicts": records})


def read_draw(words: list[str], requests: Any) -> frozenset[str]:
    """The requests that `--draw` names, or so many with the largest differences.

    Raises:
        ValueError: if a name is none of a request.
    """
    from rewardedit.evaluation.editor_wall import largest, spreads

    if len(words) == 1 and words[0].isdecimal() and words[0] not in requests.names:
        spread, _ = spreads(requests.scores.scores)
        return frozenset(requests.ids[i] for i in largest(spread)[: int(words[0])])
    chosen = set()
    for word in words:
        ids = [requests.ids[i] for i, name in enumerate(requests.names) if name == word]
        if not ids:
            raise ValueError(f"--draw: expected a number, or names such as {requests.names[0]}; got {word}")
        chosen.update(ids)
    return frozenset(chosen)


def drawing_commands(specs: dict[str, ScorerSpec]) -> dict[str, str]:
    """Options of `rewardedit score` that draw an edit, without the file, by what they draw."""
    from rewardedit.cli.drawing import drawable
    from rewardedit.files import to_json

    scorer = drawable(specs)
    if scorer is None:
        return {}
    option, spec, title = scorer
    word = shlex.quote(spec if isinstance(spec, str) else to_json(spec))
    return {title: f"--scorer {word} {option}"}


def drawing(rows: Any, specs: dict[str, ScorerSpec], size: int | None) -> Any:
    """A function that draws a row.

    Raises:
        ValueError: if no scorer's view of an edit can be drawn.
    """
    from rewardedit import devices
    from rewardedit.cli.drawing import EXPLAIN, drawable
    from rewardedit.images import to_pil
    from rewardedit.reports.explain import explain
    from rewardedit.reports.heatmap import draw_heat, heat_map

    scored = drawable(specs)
    if scored is None:
        raise ValueError(f"--draw: expected bpm, dice or a differentiable scorer; got {', '.join(specs)}")
    option, spec, title = scored
    scorer = load_scorers({"": spec}, {})[""].to(devices.default_device())

    def draw(row: int) -> tuple[str, Any]:
        batch = read_batch(rows[row], size, "crop").to(devices.default_device())
        if option == EXPLAIN:
            return title, explain(scorer, batch)
        return title, to_pil(draw_heat(batch.edited, heat_map(scorer, batch))[0])

    return draw
