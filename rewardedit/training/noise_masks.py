"""Edit regions of groups, inside which online RL explores and gives credit (RC-GRPO-Editing, 2604.09386)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.data import DataConfig, Rows, require_size, row_shards
from rewardedit.data.reading import read_shard
from rewardedit.files import join_arrays
from rewardedit.regions.change_map import change_mask, dilated
from rewardedit.scorer_spec import ScorerSpec, read_spec
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.stages.stage import stage
from rewardedit.training.prompt_cache import ENCODE_BATCH
from rewardedit.untrusted import CONTENT_ERRORS

GIVEN = "given"
CHANGE = "change"
BPM = "bpm"
WITHOUT_MODEL = (GIVEN, CHANGE)
SHARE = (
    0.25  # of a group's images in whose regions a location must lie, so that one stray image decides nothing
)
LOOKED = 16  # rows that are looked at for masks before anything is made
PADDING = 1  # locations of the latents by which a region grows: those at its rim mix inside and outside


def require_noise_mask(mask: ScorerSpec | None) -> None:
    """Raises ValueError unless the setting is null, given, change, or the scorer bpm with its options."""
    if mask is None or mask in WITHOUT_MODEL:
        return
    if list(read_spec(mask)) != [BPM]:
        raise ValueError(
            f"noise_mask: expected null, {GIVEN}, {CHANGE} or {BPM}, or {{bpm: {{regions: …}}}} with its "
            f"models; got {mask!r}"
        )


def require_masks(mask: ScorerSpec | None, rows: Rows) -> None:
    """Checks the rows for `given` before any stage runs, by some of them.

    Raises:
        ValueError: if those that can be read have no masks.
    """
    if mask != GIVEN:
        return
    looked = range(0, len(rows), max(1, -(-len(rows) // LOOKED)))
    for row in looked:
        try:
            if rows[row].mask is not None:
                return
        except CONTENT_ERRORS:
            continue
    raise ValueError(
        f"reward.noise_mask: expected rows with masks for {GIVEN}; {len(looked)} of {len(rows)} rows, evenly "
        f"spaced, have none; take {CHANGE}, or MagicBrush"
    )


def load_locator(mask: ScorerSpec | None) -> Scorer | None:
    """The scorer whose models find regions, which only bpm has."""
    return None if mask is None or mask in WITHOUT_MODEL else load_scorer(mask, device="cpu")


@dataclass
class NoiseMasks:
    """Finds the edit region of each group, as `noise_mask` says."""

    kind: str  # given, change or bpm
    given: np.ndarray | None = None  # (n, 1, s, s) uint8, the rows' masks
    scorer: Any = None  # Bpm

    def of_groups(
        self, rows: Int[Tensor, " g"], batch: EditBatch, shape: tuple[int, int, int]
    ) -> Float[Tensor, "g 1 h w"]:
        """Regions as 0 and 1 at the latents' size.

        A location belongs to it if it lies in the regions of a quarter of the group's images. A group without
        a region may change everywhere: nothing is restricted by a guess.

        Args:
            rows: of the groups, in the cache.
            batch: equally many edits of each group, group by group.
            shape: (c, h, w) of the latents.
        """
        if self.given is not None:
            return to_latents(torch.from_numpy(self.given[rows.numpy()]).float() / 255, shape)
        of_images = []
        for i in range(len(batch)):  # one by one, as a detector's memory is not planned for more
            of_images.append(self._of_image(batch[i : i + 1]))
        agreed = torch.cat(of_images).unflatten(0, (len(rows), -1)).mean(1) >= SHARE
        return to_latents(agreed.float(), shape)

    def _of_image(self, batch: EditBatch) -> Float[Tensor, "1 1 h w"]:
        """The region of one edit, in pixels; without one, nothing."""
        if not all(batch.is_finite):
            return torch.zeros_like(batch.source[:, :1])
        if self.kind == CHANGE:
            return (change_mask(batch.source, batch.edited) > 0.5).float()
        device = next(self.scorer.parameters()).device
        images = (batch.source.to(device), batch.edited.to(device))
        return self.scorer.masks(*images, batch.instruction).to(batch.source)


def to_latents(mask: Float[Tensor, "b 1 _ _"], shape: tuple[int, int, int]) -> Float[Tensor, "b 1 h w"]:
    """A mask in pixels as 0 and 1 at the latents' size: 1 where it touches a location or one beside it. An
    empty mask becomes 1 everywhere.
    """
    touched = F.adaptive_max_pool2d(mask, shape[-2:]) > 0.5
    grown = dilated(touched.float(), PADDING)
    return torch.where(grown.flatten(1).any(1)[:, None, None, None], grown, 1.0)


def load_noise_masks(
    mask: ScorerSpec | None, rows: Rows, data: DataConfig, folder: Path, device: torch.device | str
) -> NoiseMasks | None:
    """Prepares the finder of regions; the rows' own masks are read once and kept in `folder`.

    Args:
        device: of bpm's models.

    Raises:
        ValueError: for given masks that no row has.
    """
    if mask is None:
        return None
    if mask == CHANGE:
        return NoiseMasks(CHANGE)
    locator = load_locator(mask)
    if locator is not None:
        return NoiseMasks(BPM, scorer=locator.to(device))
    masks = cache_masks(rows, data, folder)
    if not any(masks[at : at + ENCODE_BATCH].any() for at in range(0, len(masks), ENCODE_BATCH)):
        raise ValueError(
            f"noise_mask: expected rows with masks for {GIVEN}; none of {len(rows)} rows of {data.name} has "
            f"one; take {CHANGE}, or MagicBrush"
        )
    return NoiseMasks(GIVEN, masks)


def cache_masks(rows: Rows, data: DataConfig, folder: Path) -> np.ndarray:
    """The rows' masks as memory-mapped bytes (n, 1, s, s), 255 where change is wanted; zero for rows without
    one.
    """
    parts = row_shards(rows, ENCODE_BATCH)
    size = require_size(data)

    def read(number: int, path: Path) -> None:
        path.mkdir()
        masks = np.zeros((len(parts[number]), 1, size, size), np.uint8)
        for chunk in read_shard(parts[number], data, ENCODE_BATCH, fields=("mask",)):
            if chunk.batch is not None and chunk.batch.mask is not None:
                masks[chunk.numbers] = (chunk.batch.mask > 0.5).to(torch.uint8).numpy() * 255
        np.save(path / "masks.npy", masks)

    def join(shards: list[Path]) -> None:
        join_arrays([shard / "masks.npy" for shard in shards], folder / "masks.npy")

    stage(folder, {"data": data, "rows": len(rows)}, read, len(parts), finish=join)
    return np.load(folder / "masks.npy", mmap_mode="r")
