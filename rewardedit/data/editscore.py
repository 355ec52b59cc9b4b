"""EditScore's benchmark of preferences (Luo et al. 2025), also called EditReward-Bench.

Columns, as its dataset_info.json has them: key, of the two edits; instruction, input_image, output_images, of
two; task_type, and dimension, which is prompt_following, consistency or overall. Its files are Arrow, as 🤗
datasets' `save_to_disk` writes them. The first of the two edits is the better one: the authors count an
answer as right if its score is the higher, and a tie as wrong. One pair of edits occurs in several rows,
for different dimensions and perhaps in another order, which is why `EditPair.aspect` is the dimension.

The training data, "EditScore/EditScore-Reward-Data", is not read here: it holds conversations with a judge
about single edits, and no preferences.
"""

from typing import Any

from rewardedit.batch import EditPair
from rewardedit.data.hub import HubPairs, make_pair


class EditScoreBench(HubPairs):
    """Pairs of "EditScore/EditReward-Bench" on the hub."""

    pictures = ("input_image", "output_images")
    texts = ("task_type", "dimension")
    columns = ("key", "instruction", "task_type", "dimension", *pictures)

    def pair(self, row: dict[str, Any]) -> EditPair:
        edits = row["output_images"] or []
        if len(edits) != 2:
            raise ValueError(f"output_images: expected two; got {len(edits)}")
        name = "-".join(map(str, (*(row["key"] or []), row["dimension"])))
        return make_pair(
            name,
            row["input_image"],
            row["instruction"],
            edits,
            "left",
            aspect=row["dimension"],
            edit_type=row["task_type"],
        )
