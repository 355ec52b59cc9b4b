"""EditReward's preferences (Wu et al. 2025): its training data and its benchmark.

EditReward-Data's columns, as its card has them: unique_key, instruction, source_img, left_output_image,
right_output_image, vote_type, three scores of each edit, and more; the only split is train (170,772 pairs).
A card that copies 100 of the pairs says that vote_type is leftvote, rightvote or tie, and that the overall
score is the sum of two from 1 to 4; GenAI-Bench, whose names these are, also has tievote and bothbad_vote.
No row could be inspected: a vote or a score beyond these is refused, not guessed at.

EditReward-Bench's columns, as the authors' evaluation reads them: id, instruction, source_image, candidate_1,
candidate_2, ranking. A group of two, three or four edits A, B, C, D is stored as its pairs, whose ids begin
alike; ranking names two of them, such as "C>A" or "A=B", and candidate_1 is the first of the two in the
alphabet. The authors' issues 13 and 14 report pairs that occur twice with different rankings.
"""

import dataclasses
import math
import re
from typing import Any, Literal

from rewardedit.batch import EditPair
from rewardedit.data.hub import HubPairs, make_pair

Preferred = Literal["left", "right", "tie"]
VOTES: dict[str, Preferred] = {
    "leftvote": "left",
    "rightvote": "right",
    "tie": "tie",
    "tievote": "tie",
    "bothbad_vote": "tie",
}
LOWEST = 2.0  # of an overall score
HIGHEST = 8.0
RANKING = re.compile(r"([A-D])([>=])([A-D])")


class EditReward(HubPairs):
    """Pairs of "TIGER-Lab/EditReward-Data" on the hub;
    the label of an edit is its overall score, 2 to 8, rescaled to 0 to 10.
    """

    pictures = ("source_img", "left_output_image", "right_output_image")
    columns = (
        "unique_key",
        "instruction",
        "vote_type",
        "left_overall_score",
        "right_overall_score",
        *pictures,
    )

    def ties(self) -> list[int]:
        return [number for number, vote in enumerate(self.rows["vote_type"]) if VOTES.get(vote) == "tie"]

    def pair(self, row: dict[str, Any]) -> EditPair:
        vote = row["vote_type"]
        if vote not in VOTES:
            raise ValueError(f"vote_type: expected one of {', '.join(VOTES)}; got {vote!r}")
        edits = (row["left_output_image"], row["right_output_image"])
        pair = make_pair(row["unique_key"], row["source_img"], row["instruction"], edits, VOTES[vote])
        left = dataclasses.replace(pair.left, label=label_of(row["left_overall_score"]))
        right = dataclasses.replace(pair.right, label=label_of(row["right_overall_score"]))
        return dataclasses.replace(pair, left=left, right=right)


def label_of(score: float | None) -> float | None:
    """An overall score from 2 to 8 as a label from 0 to 10; None if there is none.

    Raises:
        ValueError: on a score beyond 2 to 8.
    """
    if score is None or math.isnan(score):
        return None
    if not LOWEST <= score <= HIGHEST:
        raise ValueError(f"overall score: expected {LOWEST:g} to {HIGHEST:g}; got {score:g}")
    return 10 * (score - LOWEST) / (HIGHEST - LOWEST)


class EditRewardBench(HubPairs):
    """Pairs of "TIGER-Lab/EditReward-Bench" on the hub: those of 2, 3 and 4 edits, one after another."""

    pictures = ("source_image", "candidate_1", "candidate_2")
    columns = ("id", "instruction", "ranking", *pictures)

    def pair(self, row: dict[str, Any]) -> EditPair:
        edits = (row["candidate_1"], row["candidate_2"])
        return make_pair(
            row["id"], row["source_image"], row["instruction"], edits, read_ranking(row["ranking"])
        )


def read_ranking(ranking: str) -> Preferred:
    """Returns the better of the two edits that a ranking names; the first in the alphabet is on the left.

    Raises:
        ValueError: on anything but two different letters from A to D and > or =.
    """
    match = RANKING.fullmatch(str(ranking))
    if match is None or match[1] == match[3]:
        raise ValueError(f'ranking: expected one such as "A>B", "C>A" or "A=B"; got {ranking!r}')
    if match[2] == "=":
        return "tie"
    return "left" if match[1] < match[3] else "right"
