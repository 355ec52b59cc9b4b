"""Stages before a training on pairs: scores, where edits must be ranked; latents and regions of the pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit import devices
from rewardedit.batch import EditBatch, EditPair
from rewardedit.data import DataConfig, open_rows, row_shards
from rewardedit.data.bad_rows import require_few, unreadable_rows
from rewardedit.data.pairs import Pairs
from rewardedit.data.preferences import (
    PairRows,
    Preferences,
    has_preferences,
    preferences,
    refuse_candidates,
)
from rewardedit.data.reading import read_shard
from rewardedit.diffusion.editor_files import files_of_editor
from rewardedit.diffusion.editors import Editor
from rewardedit.files import join_arrays
from rewardedit.processes import print_on_main
from rewardedit.relabel import RelabelConfig, relabel
from rewardedit.reward_prompt import RewardPrompt
from rewardedit.scorer_spec import ScorerSpec
from rewardedit.scorers import Scorer
from rewardedit.stages.stage import stage
from rewardedit.synthesis.candidates import CandidatesConfig, candidate_rows
from rewardedit.training.latents import LatentCache, encode_rows, open_arrays, unreadable_of
from rewardedit.training.noise_masks import NoiseMasks, load_noise_masks, require_masks
from rewardedit.training.online import Watching, load_watching
from rewardedit.training.preferences import region_weights
from rewardedit.training.prompt_cache import ENCODE_BATCH
from rewardedit.training.trainable import RewardLabels, load_base

IMAGES = ("edited", "source", "target")  # fields of `PairRows`


def find_pairs(
    data: DataConfig,
    candidates: CandidatesConfig | None,
    scorer: ScorerSpec,
    min_gap: float,
    folder: Path,
    loaded: Scorer | None = None,
) -> Preferences:
    """The rows' own pairs, or the best against the worst of each source's edits, by the rows' scores or else
    by a scorer's, which are kept in `folder`.

    Args:
        loaded: the scorer, if it is loaded already.

    Raises:
        ValueError: if there are none, or the data's own preferences or `min_gap` would have no effect.
    """
    rows: Any = open_rows(data)
    if candidates is not None:
        refuse_candidates(rows)
        rows = candidate_rows(candidates, data, folder / "candidates")
    scores = None
    if not has_preferences(rows):
        config = RelabelConfig(scorer)
        scores = relabel(config, rows, data, folder / "relabelled", candidates, loaded=loaded).score
    return preferences(rows, scores, min_gap)


@dataclass
class PairCache(LatentCache):
    """Pairs with their latents: `edited` holds those of the preferred edits."""

    rejected: np.ndarray = field(kw_only=True)  # (n, c, h, w) fp16, unscaled
    regions: np.ndarray | None = None  # (n, 1, h, w) uint8: 1 where the errors of a pair count

    def rejected_latents(self, rows: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """Scaled latents of the rejected edits."""
        return torch.from_numpy(self.rejected[rows.numpy()]).float() * self.scaling

    def region_weights(self, rows: Int[Tensor, " b"], unmasked: float) -> Float[Tensor, "b 1 h w"] | None:
        """Weights of the errors of pairs; None without regions."""
        if self.regions is None:
            return None
        return region_weights(torch.from_numpy(self.regions[rows.numpy()]).float(), unmasked)


def make_pair_cache(
    pairs: Pairs | Sequence[EditPair],
    data: DataConfig,
    editor: Editor,
    folder: Path,
    made_of: dict[str, Any],
    batch_size: int | None = None,
) -> PairCache:
    """Encodes source, preferred and rejected edit of all pairs, or opens the cache in `folder`. Pairs of
    equal edits, or of two sources, are unreadable.

    Args:
        data: how images are brought to one size.
        made_of: all that says which pairs these are, beside `data`.

    Raises:
        ValueError: if the folder holds latents of other pairs, or by another editor.
    """
    rows: Any = PairRows(pairs)
    arrays, texts = encode_rows(rows, data, editor, folder, made_of, batch_size, IMAGES)
    edited, source, rejected = arrays
    scaling = editor.family.latent_scaling(editor.pipe.vae)
    ids, instructions = texts["ids"], texts["instructions"]
    unreadable = unreadable_of(texts)
    return PairCache(
        rows, data, ids, instructions, folder, scaling, edited, source, unreadable, rejected=rejected
    )


def cache_regions(cache: PairCache, masks: NoiseMasks, folder: Path, made_of: dict[str, Any]) -> np.ndarray:
    """Regions of all pairs (n, 1, h, w) as memory-mapped bytes, each of both edits: 1 where their errors
    count; 1 everywhere for unreadable pairs.
    """
    rows: Any = cache.rows
    parts = row_shards(rows, ENCODE_BATCH)

    def find(number: int, path: Path) -> None:
        path.mkdir()
        first = sum(map(len, parts[:number]))
        regions = np.ones((len(parts[number]), 1, *cache.shape[1:]), np.uint8)
        for chunk in read_shard(parts[number], cache.data, ENCODE_BATCH, fields=("target",), first=first):
            if chunk.batch is None:
                continue
            batch = chunk.batch
            assert batch.target is not None
            edits = torch.stack([batch.edited, batch.target], 1).flatten(0, 1)
            texts = []
            for text in batch.instruction:
                texts += [text, text]
            both = EditBatch(batch.source.repeat_interleave(2, 0), texts, edits)
            numbers = torch.tensor(chunk.numbers)
            regions[numbers.numpy() - first] = masks.of_groups(numbers, both, cache.shape).byte().numpy()
        np.save(path / "regions.npy", regions)

    def join(shards: list[Path]) -> None:
        join_arrays([shard / "regions.npy" for shard in shards], folder / "regions.npy")

    stage(folder, {"data": cache.data, "rows": len(rows), **made_of}, find, len(parts), finish=join)
    return open_arrays(folder, ("regions",))[0]


@dataclass
class GivenPairs:
    """Inputs of trainings on pairs of data."""

    watching: Watching
    cache: PairCache
    labels: RewardLabels


def prepare_pairs(config: Any, folder: Path) -> GivenPairs:
    """Loads the scorers and makes the stages before a training on pairs of data: scores, where edits must be
    ranked, latents and regions of the pairs, each kept in the run's folder.

    Args:
        config: of the trainer, with `data` as `online.with_data` returned it.

    Raises:
        ValueError: if there are no pairs, or too many of them cannot be read.
    """
    noise_mask: Any = config.reward.noise_mask
    require_masks(noise_mask, open_rows(config.data))
    watching = load_watching(config)
    data, scorer, min_gap = config.data, config.reward.scorer, config.preference.min_gap
    scored_pairs = find_pairs(data, config.candidates, scorer, min_gap, folder, watching.reward)
    print_on_main(str(scored_pairs))
    device = devices.default_device()
    # Before the latents, so that rows without masks, or a model that is not there, are told at once.
    rows: Any = PairRows(scored_pairs.pairs)
    masks = load_noise_masks(noise_mask, rows, data, folder / "masks", config.reward.device or device)

    editor = load_base(config.base, device, config.train.quantize)
    pairs = {"reward": scorer, "candidates": config.candidates, "min_gap": min_gap}
    batch_size = config.train.encode_batch_size
    cache = make_pair_cache(scored_pairs.pairs, data, editor, folder / "cache", pairs, batch_size)
    require_few(folder, unreadable_rows(cache.unreadable), len(scored_pairs), config.bad_rows)
    if masks is not None:
        cache.regions = cache_regions(cache, masks, folder / "regions", {**pairs, "noise_mask": noise_mask})
    prompt = RewardPrompt.load(files_of_editor(config.base))  # a conditioned base is asked for its best
    best = len(prompt.words) - 1 if prompt else 0
    return GivenPairs(watching, cache, RewardLabels(prompt, [best] * len(scored_pairs)))
