"""Functions of an lmms-eval task (0.7) that scores edits; its YAML file names them by `!function utils.…`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rewardedit.images import load_image
from rewardedit.integrations.edit_reward import EditReward
from rewardedit.untrusted import read_json


class EditTask:
    """The functions of a task, which its `utils.py` gives their names.

    Args:
        scorer: as for `load_scorer`.
        source: column of source images.
        instruction: column of instructions.
        options: of `EditReward`.
    """

    def __init__(
        self, scorer: Any, source: str = "input_image", instruction: str = "instruction", **options: Any
    ) -> None:
        self.reward = EditReward(scorer, **options)
        self.source = source
        self.instruction = instruction

    def doc_to_visual(self, doc: Mapping[str, Any]) -> list[Any]:
        """The source image. Raises ValueError if there is none."""
        if doc.get(self.source) is None:
            raise ValueError(f"{self.source}: expected the source image; got none; name its column as source")
        return [doc[self.source]]

    def doc_to_text(self, doc: Mapping[str, Any], lmms_eval_specific_kwargs: Any = None) -> str:
        return doc[self.instruction]

    def process_results(self, doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
        """Scores the first image of an answer; an entry without a score holds NaN and the reason."""
        (source,) = self.doc_to_visual(doc)
        try:
            edited = load_image(read_json(results[0])["images"][0])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            entry = {"score": math.nan, "reason": f"no edited image: {error}"}
        else:
            scores = self.reward([source], [edited], [doc[self.instruction]], [doc])
            entry = {"score": float(scores.score[0]), "reason": scores.reason[0]}
        return {"edit_score": entry, "edit_invalid": entry}

    def mean_score(self, entries: Sequence[Mapping[str, Any]]) -> float:
        """Mean of the scores; NaN if there is none."""
        scores = [entry["score"] for entry in entries if not math.isnan(entry["score"])]
        return sum(scores) / len(scores) if scores else math.nan

    def invalid_share(self, entries: Sequence[Mapping[str, Any]]) -> float:
        """Share of the edits without a score, 0 to 1."""
        return sum(math.isnan(entry["score"]) for entry in entries) / max(len(entries), 1)
