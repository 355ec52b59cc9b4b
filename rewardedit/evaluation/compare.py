"""Compares editors on held-out edits of any data set: settings are chosen on val, test is run once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewardedit import devices
from rewardedit.batch_sizes import BatchSize, in_batches
from rewardedit.data import DataConfig
from rewardedit.data.worlds import Rating
from rewardedit.diffusion.editors import Editor, SamplingConfig, load_editor
from rewardedit.diffusion.saving import save_settings
from rewardedit.evaluation import comparison_metrics as metrics_of
from rewardedit.evaluation.comparison_page import Compared, write_page
from rewardedit.evaluation.comparison_report import table
from rewardedit.evaluation.evaluate_config import EvaluateConfig
from rewardedit.evaluation.hacking import hacking_signs
from rewardedit.evaluation.held_out import HeldOut, held_out
from rewardedit.evaluation.statistics import valid_means
from rewardedit.files import remove, write_json
from rewardedit.models import EXACT
from rewardedit.models.four_bit import Bits
from rewardedit.processes import on_main_process, processes
from rewardedit.reports.heatmap import draw_heat, heat_map
from rewardedit.reports.plain_names import scorer_name
from rewardedit.scorer_spec import spec_name
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scoring import score_batch
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import stage
from rewardedit.untrusted import read_json_file

WORST = 0.0
BEST = 10.0
TOLD_APART = 10  # one in so many test edits is asked for the worst too: the difference is large


@dataclass(frozen=True)
class Judge:
    """Values of edits, higher is better: by a scorer, or exact ones of a world."""

    name: str
    scorer: Scorer | None = None  # None: the exact rating of a world

    def values(self, rows: HeldOut, images: Tensor) -> Tensor:
        """Returns the values (n,) of edits (n, 3, h, w), NaN for edits that it cannot score."""
        if self.scorer is None:
            return rows.rate(images).score
        return score_batch(rows.edited(images), {self.name: self.scorer})[self.name].score.float()


def edit_part(
    editor: Editor,
    samples: HeldOut,
    chunk: slice,
    target_score: float,
    settings: SamplingConfig,
    evaluate: EvaluateConfig,
) -> Tensor:
    """Edits of some of the samples, NaN where there is none; the noise of sample i has seed i, the same in
    every variant.
    """

    def edit(rows: range) -> Tensor:
        which = slice(rows.start, rows.stop)
        encoded = editor.encode(samples.source[which], samples.instruction[which], target_score=target_score)
        return editor.sample(encoded, rows, settings=settings).to("cpu").images

    autocast = evaluate.autocast and editor.pipe.dtype == torch.float32
    with devices.autocast(editor.pipe.device.type, autocast):
        size = BatchSize(evaluate.batch_size)
        return torch.cat(list(in_batches(range(chunk.start, chunk.stop), size, edit)))


def slices(n: int, evaluate: EvaluateConfig) -> list[slice]:
    """n samples in batches."""
    return [slice(i, min(i + evaluate.batch_size, n)) for i in range(0, n, evaluate.batch_size)]


def edit_all(
    load: Callable[[], Editor],
    samples: HeldOut,
    target_score: float,
    settings: SamplingConfig,
    evaluate: EvaluateConfig,
    folder: Path,
    n: int | None = None,
) -> list[Path]:
    """Edits of all samples, or of the first n, batch by batch in files of `folder`, which the processes
    divide among them.
    """
    parts = slices(len(samples) if n is None else n, evaluate)

    def make(number: int, path: Path) -> None:
        edited = edit_part(load(), samples, parts[number], target_score, settings, evaluate)
        with path.open("wb") as file:
            np.save(file, edited.numpy())

    return stage(
        folder, {"target_score": target_score, "settings": settings}, make, len(parts), "edits-{:05d}.npy"
    )


def choose_settings(
    load: Callable[[], Editor], val: HeldOut, evaluate: EvaluateConfig, judge: Judge, folder: Path
) -> tuple[SamplingConfig, dict[str, float]]:
    """The point of the grid with the best mean on val, and all of the grid's means.

    The processes divide the grid among them; `folder` keeps its means.

    Raises:
        ValueError: if the judge can score no edit at any point.
    """
    grid = evaluate.grid()
    if len(grid) == 1:
        return grid[0], {}

    def rate(number: int, path: Path) -> None:
        parts = []
        for chunk in slices(len(val), evaluate):
            parts.append(edit_part(load(), val, chunk, BEST, grid[number], evaluate))
        values = judge.values(val, torch.cat(parts))
        valid = values[values.isfinite()]
        write_json(path, float(valid.mean()) if len(valid) else None)

    paths = stage(folder, {"grid": grid, "judge": judge.name}, rate, len(grid), "rating-{:05d}.json")
    means: dict[SamplingConfig, float] = {}
    for settings, path in zip(grid, paths, strict=True):
        mean = read_json_file(path)
        if mean is not None:
            means[settings] = mean
    if not means:
        raise ValueError(
            f"evaluate.choose_by: {judge.name} can score none of the {len(val)} val edits; name another"
        )
    best = max(means, key=means.__getitem__)
    return best, {_described(settings): round(mean, 3) for settings, mean in means.items()}


def _described(settings: SamplingConfig) -> str:
    """A point of the grid in words."""
    guidance = f"text {settings.guidance_scale:g}, image {settings.image_guidance_scale:g}"
    return f"{settings.num_inference_steps} steps, {guidance}"


def compare(
    evaluate: EvaluateConfig,
    base: str,
    results: dict[str, Path],
    rewards: dict[str, Scorer],
    folder: Path,
    data: DataConfig | None = None,
    quantize: Bits | None = None,
) -> dict[str, Any] | None:
    """Compares the base and every variant on held-out rows; writes metrics.json and report.html.

    The settings that val chose are kept with each variant's result, which is asked so from then on. All
    processes edit; the main one rates, and has the metrics, while the others have None and may go.

    Args:
        results: the variants; the first is the one that the others are compared with. One named
            "conditioned_five" is asked for the worst too in a tenth of the test rows, as "conditioned_one".
        rewards: what the variants were trained on, and what they were not; a variant is flagged where they
            part. Without the second none is.
        data: the training data, as `comparison_data` returned it; None: the comparison names its own.
        quantize: bits of the base, as in the training.

    Raises:
        ValueError: if no held-out row can be read, or the settings cannot be chosen.
    """
    main = next(iter(results))
    edits = folder / "evaluation"
    on_main_process(lambda: remove(edits))  # an earlier one may be of editors that were trained less
    val, test = held_out(evaluate, data)
    scorers = rewards | judges(evaluate, rewards)
    judge = judge_of(evaluate, test, rewards, scorers)
    editors = {"base": base}
    for variant, result in results.items():
        editors[variant] = str(result)
    paths, best, chosen = edit_held_out(editors, val, test, evaluate, judge, edits, quantize)

    # All processes have seen the last edits: from here on none looks for them but the main one.
    processes().wait_for_everyone()
    if not processes().is_main_process:
        return None
    for name, result in results.items():
        save_settings(result, best[name])

    edited = {}
    ratings = {}
    for name, files in paths.items():
        images = read_edits(files)
        edited[name] = _padded(images, len(test))
        if test.truth is not None:
            ratings[name] = _rated(test, edited[name], len(images))
    health = {name: hacking_signs(test.source, images, test.batch.mask) for name, images in edited.items()}
    judged = metrics_of.scores(edited, test, scorers)
    scores = metrics_of.score_values(judged)
    metrics = {
        "n": len(test),
        "val_n": len(val),
        "chosen_by": judge.name,
        **(metrics_of.exact(ratings, test, main) if ratings else {}),
        "rewards": {name: valid_means(values) for name, values in scores.items()},
        "differences": metrics_of.differences(scores, test, main),
        "flags": metrics_of.flags(scores, health, list(rewards)),
        "health": {name: valid_means(values) for name, values in health.items()},
        "change_outside": metrics_of.change_outside(health, test),
        "settings": chosen,
    }
    write_json(folder / "metrics.json", metrics)
    values = {}
    for name, by_scorer in scores.items():
        values[name] = ratings[name].score if ratings else by_scorer[judge.name]
    compared = Compared(
        main,
        results[main],
        edited,
        judge.name,
        values,
        judged,
        health,
        {judge.name: scorer_name(judge.name), **{name: scorer_name(name, s) for name, s in scorers.items()}},
        next(iter(rewards), None),
        heat_of(judge.scorer, test, edited[main]),
    )
    path = write_page(metrics, compared, test, folder)
    print(table(metrics, main))
    print(f"report: {path}")
    remove(edits)
    return metrics


def read_edits(files: list[Path]) -> Tensor:
    """Edits (n, 3, h, w) that `edit_all` kept."""
    return torch.cat([torch.from_numpy(np.load(file)) for file in files])


def _padded(values: Tensor, n: int) -> Tensor:
    """Values (k, …) of the first k of n rows, NaN for the others."""
    out = values.new_full((n, *values.shape[1:]), torch.nan)
    out[: len(values)] = values
    return out


def _rated(test: HeldOut, images: Tensor, instructed: int) -> Rating:
    """Exact ratings of the edits, NaN for rows beyond the first `instructed`, for which no edit was made."""
    return Rating(*(_padded(values[:instructed], len(test)) for values in vars(test.rate(images)).values()))


def heat_of(scorer: Scorer | None, rows: HeldOut, images: Tensor) -> Callable[[int], Tensor] | None:
    """Function that draws a scorer's heat map (3, h, w) of the edit in a row; None without a gradient."""
    if scorer is None or not scorer.differentiable:
        return None

    def draw(row: int) -> Tensor:
        edit = rows.edited(images)[row : row + 1]
        device = next((p.device for p in scorer.parameters()), edit.edited.device)
        return draw_heat(edit.edited, heat_map(scorer, edit.to(device)).cpu())[0]

    return draw


def judges(evaluate: EvaluateConfig, rewards: dict[str, Scorer]) -> dict[str, Scorer]:
    """Loads the scorers that judge beside those of the training."""
    device = devices.default_device()
    named = {spec_name(spec): spec for spec in evaluate.scorers}
    return {name: load_scorer(spec, device=device) for name, spec in named.items() if name not in rewards}


def judge_of(
    evaluate: EvaluateConfig, rows: HeldOut, rewards: dict[str, Scorer], scorers: dict[str, Scorer]
) -> Judge:
    """Returns the judge of the settings: a world's exact rating, else a scorer that trained no editor, else
    the one that did. Scorers that prefer an unchanged source would choose settings that do not edit.
    """
    if evaluate.choose_by is None and rows.truth is not None:
        return Judge(EXACT)
    others = [name for name in scorers if name != next(iter(rewards), None)]
    judging = [name for name in others if getattr(scorers[name], "against", None) != "source"]
    name = evaluate.choose_by or next(iter(judging), next(iter(scorers)))
    return Judge(name, scorers[name])


def edit_held_out(
    editors: dict[str, str],
    val: HeldOut,
    test: HeldOut,
    evaluate: EvaluateConfig,
    judge: Judge,
    folder: Path,
    quantize: Bits | None = None,
) -> tuple[dict[str, list[Path]], dict[str, SamplingConfig], dict[str, Any]]:
    """Each editor's test edits, at the settings that are best for it on val; these, and as they are recorded.
    The base comes first: a grid that is not given lies around its own settings.
    """
    paths: dict[str, list[Path]] = {}
    best: dict[str, SamplingConfig] = {}
    chosen: dict[str, Any] = {}
    device = devices.default_device()
    for name, path in editors.items():
        dtype = "auto" if evaluate.dtype is None else devices.inference_dtype(evaluate.dtype)
        options = {"dtype": dtype, "compile": evaluate.compile}
        options["quantize"] = quantize if name == "base" else "auto"
        load = Lazy(partial(load_editor, path, device=device, **options))
        if name == "base":
            evaluate = evaluate.around(load().settings)
        best[name], grid = choose_settings(load, val, evaluate, judge, folder / name / "val")
        chosen[name] = {**_recorded(best[name]), "val": grid}
        paths[name] = edit_all(load, test, BEST, best[name], evaluate, folder / name / "test")
        if name == "conditioned_five":
            worst = folder / name / "test-worst"
            n = max(2, len(test) // TOLD_APART)
            paths["conditioned_one"] = edit_all(load, test, WORST, best[name], evaluate, worst, n)
    return paths, best, chosen


def _recorded(settings: SamplingConfig) -> dict[str, Any]:
    """Sampling settings under the keys that recorded results have."""
    return {
        "steps": settings.num_inference_steps,
        "text_guidance": settings.guidance_scale,
        "image_guidance": settings.image_guidance_scale,
    }
