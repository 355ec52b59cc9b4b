"""Stand-in of ComfyUI's node contract (V3), written from its documentation."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch


@dataclass
class Input:
    id: str
    multiline: bool = False
    default: Any = None
    optional: bool = False


@dataclass
class Output:
    id: str | None = None
    display_name: str | None = None


@dataclass
class Schema:
    node_id: str
    display_name: str | None = None
    category: str = "sd"
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)


class NodeOutput:
    def __init__(self, *args: Any) -> None:
        self.args = args


class ComfyNode:
    """A class whose methods are class methods."""

    @classmethod
    def run(cls, **values: Any) -> tuple[Any, ...]:
        """Calls `execute` as ComfyUI does: with the declared inputs by name, optional ones if connected, in
        torch's inference mode, as are the images that other nodes made.
        """
        schema = cls.define_schema()
        names = {one.id for one in schema.inputs}
        needed = {one.id for one in schema.inputs if not one.optional}
        assert needed <= set(values) <= names
        with torch.inference_mode():
            made = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in values.items()}
            found = cls.execute(**made)
        assert isinstance(found, NodeOutput)
        assert len(found.args) == len(schema.outputs)
        return found.args


class ComfyExtension:
    async def get_node_list(self) -> list[type[ComfyNode]]:
        raise NotImplementedError


_KIND = SimpleNamespace(Input=Input, Output=Output)
io = SimpleNamespace(
    ComfyNode=ComfyNode,
    Schema=Schema,
    NodeOutput=NodeOutput,
    **dict.fromkeys(("Image", "String", "Mask", "Float", "Int"), _KIND),
)
