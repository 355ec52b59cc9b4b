"""Nodes for ComfyUI (V3): the score of an edit, its heat map, and the best edit of a batch.

A file in `custom_nodes` holds `from rewardedit.integrations.comfyui.nodes import comfy_entrypoint`.
"""

from typing import Any

from comfy_api.latest import ComfyExtension, io  # pyright: ignore[reportMissingImports]

from rewardedit.integrations.comfyui import batches


def schema(name: str, title: str, outputs: list[Any], further: list[Any] | None = None) -> Any:
    """Description of a node by its name, title, outputs and further inputs."""
    inputs = [
        io.Image.Input("source"),
        io.Image.Input("edited"),
        io.String.Input("instruction", multiline=True),
        io.String.Input("scorer", default="vlm_judge"),
        *(further or []),
    ]
    return io.Schema(
        node_id=name, display_name=title, category="image/rewardedit", inputs=inputs, outputs=outputs
    )


class EditScore(io.ComfyNode):
    """The mean score of the edits, and each one's on a line."""

    @classmethod
    def define_schema(cls) -> Any:
        outputs = [io.Float.Output(display_name="score"), io.String.Output(display_name="scores")]
        further = [io.Mask.Input("mask", optional=True)]
        return schema("RewardeditScore", "Score an edit", outputs, further)

    @classmethod
    def execute(cls, source, edited, instruction, scorer, mask=None) -> Any:
        scores = batches.score(source, edited, instruction, scorer, mask)
        return io.NodeOutput(sum(scores) / len(scores), "\n".join(f"{score:.4f}" for score in scores))


class EditHeatMap(io.ComfyNode):
    """The edits with the places that raised (green) or lowered (red) the score."""

    @classmethod
    def define_schema(cls) -> Any:
        return schema("RewardeditHeatMap", "Heat map of an edit", [io.Image.Output(display_name="heat map")])

    @classmethod
    def execute(cls, source, edited, instruction, scorer) -> Any:
        return io.NodeOutput(batches.heat(source, edited, instruction, scorer))


class BestEdit(io.ComfyNode):
    """The edit of a batch with the highest score, its score and its number."""

    @classmethod
    def define_schema(cls) -> Any:
        outputs = [
            io.Image.Output(display_name="best"),
            io.Float.Output(display_name="score"),
            io.Int.Output(display_name="number"),
        ]
        further = [io.Mask.Input("mask", optional=True)]
        return schema("RewardeditBest", "Best edit of a batch", outputs, further)

    @classmethod
    def execute(cls, source, edited, instruction, scorer, mask=None) -> Any:
        scores = batches.score(source, edited, instruction, scorer, mask)
        best = scores.index(max(scores))
        return io.NodeOutput(edited[best : best + 1], scores[best], best)


class Extension(ComfyExtension):
    """The nodes of this package."""

    async def get_node_list(self) -> list[Any]:
        return [EditScore, EditHeatMap, BestEdit]


async def comfy_entrypoint() -> Extension:
    return Extension()
