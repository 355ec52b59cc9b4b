"""The work of `rewardedit edit`: images and instructions in; edited images,
a record of each and a gallery out.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from rewardedit.batch import EditBatch
from rewardedit.data.edit_jobs import EditJob
from rewardedit.data.reading import notice_shapes
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.diffusion.guidance import mask_guidance, require_maskable, two_round_edit
from rewardedit.diffusion.sizes import hint_at_size, out_of_memory_told, smaller_size
from rewardedit.files import stamp, to_json, write_json
from rewardedit.images import load_image, load_mask, resize, same_shape, to_pil
from rewardedit.language.texts import noting
from rewardedit.models import resolve_model
from rewardedit.regions.change_map import change_mask
from rewardedit.reports.edit_gallery import save_candidates, write_gallery
from rewardedit.scorer_spec import ScorerSpec, spec_name
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scorers.load import packaged_files
from rewardedit.scoring import TEXT_CUT, score_batch
from rewardedit.selection import best_of_n
from rewardedit.stages.stage import differences
from rewardedit.untrusted import read_json


@dataclass(frozen=True)
class EditRunConfig:
    """Settings of all jobs; a job that was finished with the same config and files is not repeated."""

    model: str
    settings: SamplingConfig
    seed: int = 0
    target_score: float = 10.0  # score that a reward-conditioned editor is prompted for, 0 to 10
    size: int | None = None  # shorter side in pixels; None: the image's own
    best_of: int = 1
    scorer: ScorerSpec | None = None
    # Edit again, only where the first edit changed the image ("auto") or where BPM locates the edit (a spec
    # of the scorer bpm); or a mask file, to edit only inside that mask.
    mask: ScorerSpec | None = None
    dtype: str = "float32"  # type of the editor's weights
    lora: str | None = None  # LoRA weights for the editor
    quantize: str | None = None  # bits of the editor's linear layers; None: as they were loaded

    def __post_init__(self) -> None:
        require_numbers(self.best_of, self.size, self.target_score)


def require_numbers(best_of: int, size: int | None, target_score: float) -> None:
    """Raises ValueError for numbers that an `EditRunConfig` does not accept."""
    if best_of < 1:
        raise ValueError(f"best-of: expected at least 1; got {best_of}")
    if size is not None and size < 1:
        raise ValueError(f"size: expected at least 1; got {size}")
    if not 0 <= target_score <= 10:
        raise ValueError(f"target-score: expected a number from 0 to 10; got {target_score:g}")


@dataclass(frozen=True)
class Masks:
    """Areas in which edits may change the image."""

    fixed: Float[Tensor, "1 h w"] | None = None  # the same for all images
    # computes masks from sources, their first edits and instructions, for a second round
    find: Callable[[Tensor, Tensor, list[str]], Tensor] | None = None


def open_masks(mask: ScorerSpec | None, device: torch.device | str) -> Masks:
    """Opens the masks that `EditRunConfig.mask` names.

    Raises:
        ValueError: if a mask file cannot be read, or a model cannot be loaded.
    """
    from rewardedit.scorers.bpm.bpm import Bpm

    if mask is None:
        return Masks()
    if mask == "auto":
        return Masks(find=lambda source, edited, instruction: change_mask(source, edited))
    if mask == "bpm" or isinstance(mask, dict):
        scorer = load_scorer(mask, device=device)
        if not isinstance(scorer, Bpm):
            raise ValueError(f"mask: expected auto, bpm with its options, or a mask file; got {mask}")
        # Edits come back in main memory, wherever the models are.
        return Masks(find=lambda *seen: scorer.masks(*(_moved(value, device) for value in seen)).cpu())
    return Masks(fixed=load_mask(mask))


def _moved(value: Any, device: torch.device | str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def run_edits(
    editor: Editor,
    scorer: Scorer | None,
    jobs: list[EditJob],
    config: EditRunConfig,
    folder: Path,
    overwrite: bool = False,
) -> dict[str, str]:
    """Runs all jobs that are not yet finished in `folder`, and writes `gallery.html`.

    Args:
        overwrite: replace edits in `folder` that were made by another request.

    Returns:
        Reasons why jobs failed, by id: an unreadable image does not keep the others from being edited.

    Raises:
        ValueError: if the mask file cannot be read, the editor takes no mask, or an edit by another request
            would be overwritten.
    """
    if config.mask is not None:
        require_maskable(editor, config.settings)
    if not overwrite:
        require_same_requests(jobs, config, folder)
    masks = open_masks(config.mask, editor.pipe.device)
    folder.mkdir(parents=True, exist_ok=True)
    stamps = stamps_of(config)

    failed: dict[str, str] = {}
    done: list[dict[str, Any]] = []
    for job in tqdm(jobs, desc="editing", unit="image", disable=len(jobs) == 1):
        record = folder / f"{job.stem}.json"
        made_of = {**request_of(job, config), "stamps": {**stamps, "input": stamp(job.path)}}
        finished = read_record(record)
        images_exist = all(map(Path.is_file, map(folder.joinpath, _images_of(finished))))
        if finished.get("request") != made_of or not images_exist:
            try:
                turns = _edit(editor, scorer, job, config, masks, folder)
            except ValueError as error:
                failed[job.id] = str(error)
                continue
            finished = {"request": made_of, "turns": turns}
            write_json(record, finished)
        done.append(finished)

    if done:
        chosen = f", the best of {config.best_of} kept" if config.best_of > 1 else ""
        note = f"Edits from seed {config.seed}{chosen}"
        name = None if config.scorer is None else spec_name(config.scorer)
        write_gallery(done, folder, config.model, name, note)
    return failed


def request_of(job: EditJob, config: EditRunConfig) -> dict[str, Any]:
    """A job's input, instructions and settings, as they come back from a record."""
    request = {
        "input": str(job.path),
        "instructions": job.instructions,
        **dataclasses.asdict(config),
    }
    return json.loads(to_json(request))


def read_record(path: Path) -> dict[str, Any]:
    """The record of a finished job; {} if there is none that can be read."""
    try:
        record = read_json(path.read_bytes()) if path.is_file() else {}
    except ValueError:
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("request"), dict) else {}


def require_same_requests(jobs: list[EditJob], config: EditRunConfig, folder: Path) -> None:
    """Raises ValueError if a folder holds an edit that another request made and a job would replace."""
    for job in jobs:
        before = read_record(folder / f"{job.stem}.json").get("request")
        if before is None:
            continue
        before.pop("stamps", None)  # of files whose content changed: the edit is made again
        if changed := differences(before, request_of(job, config)):
            raise ValueError(
                f"{folder / job.stem}: made with other settings ({changed[0]}); use another --out, or "
                "--overwrite"
            )


def _images_of(record: dict[str, Any]) -> list[str]:
    """The files that the turns of a record name."""
    images = []
    for turn in record.get("turns", []):
        images += [turn[key] for key in ("source", "image", "mask") if key in turn]
        images += [candidate["image"] for candidate in turn.get("candidates", [])]
    return images


def stamps_of(config: EditRunConfig) -> dict[str, Any]:
    """Stamps of the files that a config names, so that an edit is repeated if they have changed."""
    named = {
        "model": resolve_model(config.model),
        "lora": config.lora,
        "scorer": config.scorer,
        "mask": config.mask,
    }
    stamps: dict[str, Any] = {}
    for name, value in named.items():
        stamps[name] = list(map(stamp, _texts_in(value)))
    return stamps | {"weights": {} if config.scorer is None else packaged_files(config.scorer)}


def _texts_in(value: Any) -> Iterator[str]:
    """The texts in nested settings, some of which are paths."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts_in(item)


def _edit(
    editor: Editor, scorer: Scorer | None, job: EditJob, config: EditRunConfig, masks: Masks, folder: Path
) -> list[dict[str, Any]]:
    if folder.resolve() == job.path.parent.resolve():
        raise ValueError(
            f"{folder}: holds the image itself, which its edit could overwrite; choose another --out"
        )

    image = load_image(job.path)
    if masks.fixed is not None and not same_shape(image.shape[-2:], masks.fixed.shape[-2:]):
        notice_shapes("mask", image.shape[-2:], masks.fixed.shape[-2:])
    source = editor.resize(image, config.size)
    if config.size is None:
        hint_at_size(editor, job.path, source)
    (folder / f"{job.stem}.json").unlink(missing_ok=True)  # it does not describe the new images
    turns: list[dict[str, Any]] = []
    before = f"{job.name(0)}.png"
    to_pil(source[0]).save(folder / before)

    for number, instruction in enumerate(job.instructions, 1):
        with noting() as cut, out_of_memory_told(job.path, source, smaller_size(config.size)):
            turn = _turn(editor, scorer, source, instruction, config, masks)
        record = turn.record | ({TEXT_CUT: True} if cut else {})
        name = job.name(number)
        to_pil(turn.edited[0]).save(folder / f"{name}.png")
        if turn.mask is not None:
            to_pil(turn.mask[0].expand(3, -1, -1)).save(folder / f"{name}-mask.png")
            record["mask"] = f"{name}-mask.png"
        if turn.candidates:
            record["candidates"] = save_candidates(
                turn.candidates, dict(enumerate(record["scores"], config.seed)), folder, name
            )
        turns.append({"instruction": instruction, **record, "source": before, "image": f"{name}.png"})
        source = turn.edited
        before = f"{name}.png"

    return turns


@dataclass(frozen=True)
class Turn:
    """The edit by one instruction, and how it was made."""

    edited: Float[Tensor, "1 3 h w"]
    mask: Float[Tensor, "1 1 h w"] | None  # to which it was restricted
    record: dict[str, Any]
    candidates: dict[int, Float[Tensor, "3 h w"]]  # by seed, where the best of N was taken


def _turn(
    editor: Editor,
    scorer: Scorer | None,
    source: Tensor,
    instruction: str,
    config: EditRunConfig,
    masks: Masks,
) -> Turn:
    """Edits by one instruction: the best of N, restricted to a mask."""
    candidates: dict[int, Tensor] = {}
    prompt = editor.prompt.relabel(instruction, config.target_score) if editor.prompt else instruction
    turn: dict[str, Any] = {"prompt": prompt, "seed": config.seed}
    options: dict[str, Any] = {"target_score": config.target_score, "settings": config.settings}
    mask = masks.fixed
    if mask is not None:
        mask = resize(mask[None], (source.shape[-2], source.shape[-1]))

    with mask_guidance(editor.pipe, mask) if mask is not None else nullcontext():
        if scorer is not None and config.best_of > 1:
            choice = best_of_n(
                editor, scorer, source, instruction, config.best_of, seed=config.seed, **options
            )
            candidates = dict(zip(choice.seeds_of_images, choice.images, strict=True))
            edited = choice.best[None]
            turn["seed"] = choice.best_seed
            turn["scores"] = [None if s != s else round(s, 5) for s in choice.scores.score.tolist()]
        else:
            edited = editor(source, [instruction], [config.seed], **options)

    if masks.find is not None:
        find = masks.find
        rounds = two_round_edit(
            editor,
            source,
            [instruction],
            mask=lambda before, after: find(before, after, [instruction]),
            first=edited,
            seed=turn["seed"],
            **options,
        )
        if rounds.reason[0] is not None:
            raise ValueError(rounds.reason[0])
        edited = rounds.edited
        mask = rounds.mask

    if scorer is not None:
        scores = score_batch(EditBatch(source, [instruction], edited), {"": scorer})[""]
        turn["score"] = float(scores.score[0]) if scores.valid[0] else None
        turn["reason"] = scores.reason[0]
    return Turn(edited, mask, turn, candidates)
