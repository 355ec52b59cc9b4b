"""Edits of the same sources by editors of unlike quality, and their exact ratings; each is made once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from rewardedit import models
from rewardedit.diffusion.editors import load_editor
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.files import AnyPath, write_json
from rewardedit.images import to_bytes, to_float
from rewardedit.shapes.bench.settings import COPY, DRAWN, EDITOR, SAMPLED, ShapesBench
from rewardedit.shapes.corruptions import corrupt_targets
from rewardedit.shapes.oracle import ShapesOracle
from rewardedit.shapes.vocabulary import SIZE, WORLD_VERSION
from rewardedit.shapes.world import Shapes, ShapesBatch
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import stage
from rewardedit.untrusted import read_json_file

SPLIT = "test"
CHUNK = 35  # edits that are made at once
APART = 100_000  # distance of the random seeds of two edits of one source
PICTURED = "pictured"  # images that a text-to-image model made of the target captions
IMAGES = "images"
Key = tuple[str, int]  # editor and number of its edit of a source


@dataclass(frozen=True)
class World:
    """The sources of the comparison, in usual and in reserved wordings."""

    n: int

    @cached_property
    def usual(self) -> ShapesBatch:
        return Shapes(SPLIT).batch(0, self.n)

    @cached_property
    def reserved(self) -> ShapesBatch:
        return Shapes(SPLIT, wordings="reserved").batch(0, self.n)

    @property
    def sources(self) -> list[str]:
        return self.usual.id


def edit_keys(bench: ShapesBench) -> list[Key]:
    """All editors with the numbers of their edits: several for the packaged editor at its best."""
    keys = [(name, 0) for name in bench.editors]
    return [*keys, *((EDITOR, seed) for seed in range(1, bench.seeds))]


def make_edits(out: AnyPath, bench: ShapesBench, world: World) -> dict[Key, Float[Tensor, "n 3 64 64"]]:
    """The edits of all sources by each editor, and the images `PICTURED`, on 256 levels."""
    sampled = [key for key in edit_keys(bench) if key[0] in SAMPLED]
    keys = [*sampled, (PICTURED, 0)]
    parts = list(product(keys, range(0, bench.n, CHUNK)))
    editor = Lazy(lambda: load_editor("shapes/editor"))
    painter = Lazy(lambda: load_text_to_image("shapes/text-to-image"))

    def make(number: int, path: Path) -> None:
        (name, seed), first = parts[number]
        samples = world.usual[first : first + CHUNK]
        seeds = [first + i + APART * seed for i in range(len(samples))]
        if name == PICTURED:
            images = _picture(painter(), samples.target_caption, seeds)
        else:
            images = editor()(samples.source, samples.instruction, seeds, settings=SAMPLED[name])
        save_file({IMAGES: to_bytes(images.clamp(0, 1)).contiguous()}, path)

    made_of = {"world": WORLD_VERSION, "n": bench.n, "edits": keys, "settings": SAMPLED}
    made_of["models"] = models.fingerprints(["shapes/editor", "shapes/text-to-image"])
    with torch.no_grad():
        paths = stage(out / "edits", made_of, make, len(parts), "edits-{:05d}.safetensors")

    chunks_by_key: dict[Key, list[Tensor]] = {}
    for (key, _), path in zip(parts, paths, strict=True):
        chunks_by_key.setdefault(key, []).append(to_float(load_file(path)[IMAGES]))
    edits = {key: torch.cat(chunks) for key, chunks in chunks_by_key.items()}
    for name in bench.editors:
        if name not in SAMPLED:
            edits[name, 0] = _on_levels(_drawn(name, world.usual))
    return edits


def _picture(pipe: Any, captions: list[str], seeds: list[int]) -> Tensor:
    """Images of these captions alone, at the model's usual settings."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    options = {"num_inference_steps": 10, "guidance_scale": 3.0, "output_type": "pt"}
    return pipe(captions, generator=generators, height=SIZE, width=SIZE, **options).images.float()


def _drawn(name: str, samples: ShapesBatch) -> Tensor:
    if name == COPY:
        return samples.source
    return corrupt_targets(samples, {DRAWN[name]: 1.0}, seed=0)[1]


def _on_levels(images: Tensor) -> Tensor:
    return to_float(to_bytes(images))


def rate_edits(
    out: AnyPath, bench: ShapesBench, world: World, edits: Mapping[Key, Tensor], made_of: Any
) -> dict[Key, np.ndarray]:
    """Exact ratings (n,) of each editor's edits, 0 to 10."""
    keys = edit_keys(bench)

    def make(number: int, path: Path) -> None:
        rating = ShapesOracle().rate(world.usual, edits[keys[number]])
        write_json(path, rating.score.tolist())

    paths = stage(out / "ratings", {**made_of, "edits": keys}, make, len(keys), "ratings-{:05d}.json")
    return {key: np.array(read_json_file(path)) for key, path in zip(keys, paths, strict=True)}
