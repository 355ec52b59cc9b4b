"""Editors against each other on held-out edits of the shapes world: settings chosen on val, test run once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.data import DataConfig
from rewardedit.data.labelled import made_from
from rewardedit.data.worlds import Rating, Samples, world
from rewardedit.diffusion.editors import EditConfig, Editor, load_editor, save_settings
from rewardedit.evaluation.hacking import hacking_flag, hacking_signs
from rewardedit.evaluation.statistics import paired_bootstrap, valid_means
from rewardedit.files import read_log, remove, write_json
from rewardedit.processes import on_main_process, processes
from rewardedit.reports.report import Gallery, Report
from rewardedit.scorers import Scorer
from rewardedit.scoring import score_batch
from rewardedit.stages.lazy import Once
from rewardedit.stages.stage import stage
from rewardedit.untrusted import read_json_file

OTHER_WORLD = (
    "evaluate: the oracle knows the shapes world alone; leave evaluate out for data that is neither its rows "
    "nor labelled rows that were made from them"
)
WORLD = "shapes"
WORST = 0.0
BEST = 10.0
VERSUS = {"base": "ci95", "conditioned_one": "ci95_vs_one"}  # names of intervals; others are ci95_vs_NAME


@dataclass(frozen=True)
class EvaluateConfig:
    """What is held out, and the grid from which each variant takes what is best for it on val."""

    n: int = 512  # test edits
    val_n: int = 140  # edits of the val split, on which the settings are chosen
    num_inference_steps: tuple[int, ...] | None = None  # denoising steps; None: as many as the base takes
    # text guidance scales; None: the base's, a seventh less and a seventh more
    guidance_scale: tuple[float, ...] | None = None
    image_guidance_scale: tuple[float, ...] | None = None  # image guidance scales; None: the base's
    backdrops: tuple[str, ...] = ("plain",)  # of the shapes world's samples in turn
    seed: int = 0  # of the shapes world
    batch_size: int = 128  # edits at a time
    # of the weights; None: float16 on a GPU, float32 on a CPU
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    autocast: bool = True  # float32 weights compute in bf16, where that saves time

    def __post_init__(self) -> None:
        for name, least in (("n", 2), ("val_n", 1), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}; got {getattr(self, name)}")
        world(WORLD).samples("test", self.seed, self.backdrops, 0, 1)  # refuses backdrops that there are not
        self.grid()  # and settings that no pipeline takes

    def around(self, base: EditConfig) -> "EvaluateConfig":
        """With a grid around the base's own settings where none is given."""
        steps = self.num_inference_steps or (base.num_inference_steps,)
        own = base.guidance_scale
        around = (max(1.0, round(own * 6 / 7, 3)), own, round(own * 8 / 7, 3))
        scales = self.guidance_scale or tuple(sorted(set(around)))
        # Below 1, where it says nothing without text guidance, it is refused beside it.
        image = self.image_guidance_scale or (max(1.0, base.image_guidance_scale),)
        return replace(self, num_inference_steps=steps, guidance_scale=scales, image_guidance_scale=image)

    def grid(self) -> list[EditConfig]:
        """All settings; what is not given is as it is by default. With a text guidance scale of 1 the image's
        means nothing, and comes once.
        """
        own = EditConfig()
        images = self.image_guidance_scale or (own.image_guidance_scale,)
        return [
            EditConfig(steps, text, image)
            for steps in self.num_inference_steps or (own.num_inference_steps,)
            for text in self.guidance_scale or (own.guidance_scale,)
            for image in (images if text > 1 else images[:1])
        ]


def require_variants(variants: Sequence[str], evaluate: EvaluateConfig | None, data: DataConfig) -> None:
    """Raises ValueError where variants come twice or there are none,
    or the oracle is asked about another world.
    """
    if len(set(variants)) != len(variants) or not variants:
        raise ValueError(f"variants: expected each at most once and at least one; got {variants}")
    if evaluate is not None and data.name not in (WORLD, "labelled"):
        raise ValueError(OTHER_WORLD)


def require_world(evaluate: EvaluateConfig | None, data: DataConfig) -> None:
    """Raises ValueError where the oracle is asked about labelled rows that were not made from its world."""
    if evaluate is not None and data.name == "labelled" and made_from(Path(data.path)) != {WORLD}:
        raise ValueError(OTHER_WORLD)


def edit_part(
    editor: Editor,
    samples: Samples,
    part: slice,
    score: float,
    settings: EditConfig,
    evaluate: EvaluateConfig,
) -> Tensor:
    """Edits of some of the samples, NaN where there is none; the noise of sample i has seed i, the same in
    every variant.
    """
    autocast = evaluate.autocast and editor.pipe.dtype == torch.float32
    with devices.autocast(editor.pipe.device.type, autocast):
        encoded = editor.encode(samples.source[part], samples.instruction[part], score=score)
        return editor.sample(encoded, range(part.start, part.stop), settings=settings).images


def slices(samples: Samples, evaluate: EvaluateConfig) -> list[slice]:
    """The samples in batches."""
    return [
        slice(i, min(i + evaluate.batch_size, len(samples)))
        for i in range(0, len(samples), evaluate.batch_size)
    ]


def edit_all(
    load: Callable[[], Editor],
    samples: Samples,
    score: float,
    settings: EditConfig,
    evaluate: EvaluateConfig,
    folder: Path,
) -> list[Path]:
    """Edits of all samples, batch by batch in files of `folder`, which the processes divide among them."""
    parts = slices(samples, evaluate)

    def make(number: int, path: Path) -> None:
        edited = edit_part(load(), samples, parts[number], score, settings, evaluate)
        with path.open("wb") as file:
            np.save(file, edited.numpy())

    return stage(folder, {"score": score, "settings": settings}, make, len(parts), "edits-{:05d}.npy")


def choose_settings(
    load: Callable[[], Editor], val: Samples, evaluate: EvaluateConfig, folder: Path
) -> tuple[EditConfig, dict[str, float]]:
    """The point of the grid with the best mean rating on val, and all of the grid's ratings.

    The processes divide the grid among them; `folder` keeps its ratings.
    """
    grid = evaluate.grid()
    if len(grid) == 1:
        return grid[0], {}

    def rate(number: int, path: Path) -> None:
        parts = [edit_part(load(), val, part, BEST, grid[number], evaluate) for part in slices(val, evaluate)]
        write_json(path, float(world(WORLD).rate(val, torch.cat(parts)).score.mean()))

    paths = stage(folder, {"grid": grid}, rate, len(grid), "rating-{:05d}.json")
    found = {settings: read_json_file(path) for settings, path in zip(grid, paths, strict=True)}
    best = max(grid, key=lambda s: found[s])
    names = {
        s: f"{s.num_inference_steps} steps, text {s.guidance_scale:g}, image {s.image_guidance_scale:g}"
        for s in grid
    }
    return best, {names[s]: round(v, 3) for s, v in found.items()}


def compare(
    evaluate: EvaluateConfig, base: str, results: dict[str, Path], rewards: dict[str, Scorer], folder: Path
) -> dict[str, Any] | None:
    """Rates the base and every variant, writes metrics.json and report.html, and prints the table.

    The settings that val chose are kept with each variant's result, which is asked so from then on. All
    processes edit; the main one rates, and has the metrics, while the others have None and may go.

    Args:
        results: the variants; the first is the one that the others are compared with. One named
            "conditioned_five" is asked for the worst too, as "conditioned_one".
        rewards: what the variants were trained on, and what they were not; a variant is flagged where they
            part. Without the second none is.
    """
    main = next(iter(results))
    edits = folder / "evaluation"
    on_main_process(lambda: remove(edits))  # an earlier one may be of editors that were trained less
    test = world(WORLD).samples("test", evaluate.seed, evaluate.backdrops, 0, evaluate.n)
    editors = {"base": base, **{variant: str(path) for variant, path in results.items()}}
    paths, best, chosen = _edit(editors, test, evaluate, edits)

    # All processes have seen the last edits: from here on none looks for them but the main one.
    processes().wait_for_everyone()
    if not processes().is_main_process:
        return None
    for name, result in results.items():
        save_settings(result, best[name])
    edited = {
        name: torch.cat([torch.from_numpy(np.load(path)) for path in found]) for name, found in paths.items()
    }
    ratings = {name: world(WORLD).rate(test, images) for name, images in edited.items()}
    health = {name: hacking_signs(test.source, p, test.mask) for name, p in edited.items()}
    scores = _rewards(edited, test, rewards)
    metrics = {
        "oracle": _oracle(ratings, test, main),
        "kinds": {name: _by_kind(rating, test) for name, rating in ratings.items()},
        "aspects": {name: _aspects(rating) for name, rating in ratings.items()},
        "trivial": _trivial(test),
        "rewards": {name: valid_means(values) for name, values in scores.items()},
        "flags": _flags(scores, health, list(rewards)),
        "health": {name: valid_means(values) for name, values in health.items()},
        "change_outside": _change_outside(health, test),
        "settings": chosen,
    }
    write_json(folder / "metrics.json", metrics)
    path = _report(metrics, ratings, edited, test, main, folder)
    print(table(metrics, main))
    print(f"report: {path}")
    remove(edits)
    return metrics


def _edit(
    editors: dict[str, str], test: Samples, evaluate: EvaluateConfig, folder: Path
) -> tuple[dict[str, list[Path]], dict[str, EditConfig], dict[str, Any]]:
    """Each editor's test edits, at the settings that are best for it on val; these, and as they are recorded.
    The base comes first: a grid that is not given lies around its own settings.
    """
    val = world(WORLD).samples("val", evaluate.seed, evaluate.backdrops, 0, evaluate.val_n)
    paths: dict[str, list[Path]] = {}
    best: dict[str, EditConfig] = {}
    chosen: dict[str, Any] = {}
    device = devices.default_device()
    for name, path in editors.items():
        load = Once(partial(load_editor, path, device=device, dtype=devices.inference_dtype(evaluate.dtype)))
        if name == "base":
            evaluate = evaluate.around(load().settings)
        best[name], grid = choose_settings(load, val, evaluate, folder / name / "val")
        chosen[name] = {**_recorded(best[name]), "val": grid}
        paths[name] = edit_all(load, test, BEST, best[name], evaluate, folder / name / "test")
        if name == "conditioned_five":
            worst = folder / name / "test-worst"
            paths["conditioned_one"] = edit_all(load, test, WORST, best[name], evaluate, worst)
    return paths, best, chosen


def _flags(
    scores: dict[str, dict[str, Tensor]], health: dict[str, dict[str, Tensor]], rewards: list[str]
) -> dict[str, str | None]:
    """Why each variant looks as if it hacked its reward; None where it does not, or no other reward is there
    to tell. An editor that is asked for the worst is no sign of hacking.
    """
    signs = {name: scores[name] | health[name] for name in scores}
    flags: dict[str, str | None] = dict.fromkeys(signs)
    if len(rewards) > 1:
        for name in set(signs) - {"conditioned_one"}:
            flags[name] = hacking_flag(signs[name], signs["base"], *rewards[:2])
    return flags


def _recorded(settings: EditConfig) -> dict[str, Any]:
    """Sampling settings under the keys that recorded results have."""
    return {
        "steps": settings.num_inference_steps,
        "text_guidance": settings.guidance_scale,
        "image_guidance": settings.image_guidance_scale,
    }


def _oracle(ratings: dict[str, Rating], test: Samples, main: str) -> dict[str, Any]:
    out: dict[str, Any] = {name: float(rating.score.mean()) for name, rating in ratings.items()}
    out["relative_gain"] = out[main] / max(out["base"], 1e-9) - 1
    for name in ratings:
        if name != main:
            found = paired_bootstrap(ratings[main].score.numpy(), ratings[name].score.numpy(), test.id)
            out[VERSUS.get(name, f"ci95_vs_{name}")] = list(found.ci95)
    return {**out, "n": len(test)}


def _by_kind(rating: Rating, test: Samples) -> dict[str, float]:
    kinds = sorted(set(test.edit_type))
    return {
        k: float(rating.score[torch.tensor([kind == k for kind in test.edit_type])].mean()) for k in kinds
    }


def _aspects(rating: Rating) -> dict[str, float]:
    return {name: float(getattr(rating, name).mean()) for name in ("alignment", "consistency", "quality")}


def _change_outside(health: dict[str, dict[str, Tensor]], test: Samples) -> dict[str, Any]:
    """How much more each variant changes outside the true mask than the base does,
    for edits that have an outside.
    """
    rows = (test.mask.flatten(1).amin(1) < 1).nonzero()[:, 0].tolist()
    ids = [test.id[i] for i in rows]
    outside = {name: values["change_outside"][rows] for name, values in health.items()}
    base = outside.pop("base").numpy()
    return {name: paired_bootstrap(values.numpy(), base, ids).as_dict() for name, values in outside.items()}


def _trivial(test: Samples) -> dict[str, float]:
    """What copying the source, and the true target, would be rated."""
    return {
        name: float(world(WORLD).rate(test, p).score.mean())
        for name, p in (("source", test.source), ("target", test.target))
    }


def _rewards(
    edited: dict[str, Tensor], test: Samples, rewards: dict[str, Scorer]
) -> dict[str, dict[str, Tensor]]:
    """Each variant's scores by every reward, a row each."""
    out: dict[str, dict[str, Tensor]] = {}
    truth = {
        "target": test.target,
        "mask": test.mask,
        "source_caption": test.source_caption,
        "target_caption": test.target_caption,
    }
    for name, images in edited.items():
        batch = EditBatch(test.source, test.instruction, images, **truth)
        out[name] = {key: scores.score for key, scores in score_batch(batch, rewards).items()}
    return out


def table(metrics: dict[str, Any], main: str) -> str:
    """The comparison as text."""
    oracle = metrics["oracle"]
    lines = [
        f"oracle mean (0–10) on {oracle['n']} held-out edits; difference of {main} − variant, 95 % interval"
    ]
    for name in metrics["kinds"]:
        interval = oracle.get(VERSUS.get(name, f"ci95_vs_{name}"))
        versus = ""
        if interval is not None:
            versus = f"  {oracle[main] - oracle[name]:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]"
        lines.append(f"  {name:<24}{oracle[name]:6.2f}{versus}")
    # A share of nothing says nothing.
    gain = f"{100 * oracle['relative_gain']:+.1f} %" if oracle["base"] >= 0.05 else "–"
    return "\n".join([*lines, f"  gain over the base: {gain}"])


def _report(
    metrics: dict[str, Any],
    ratings: dict[str, Rating],
    edited: dict[str, Tensor],
    test: Samples,
    main: str,
    folder: Path,
) -> Path:
    report = Report(f"rewardedit: {folder.name}")
    report.text(table(metrics, main))
    for name, found in metrics["flags"].items():
        if found:
            report.flag(f"{name}: {found}")
    report.table("Oracle rating by edit type", metrics["kinds"])
    report.table("Aspects", metrics["aspects"])
    report.table("Training reward, and one of another family", metrics["rewards"])
    report.table("Signs of reward hacking", metrics["health"])
    gallery = Gallery(["source", *edited, "target"])
    for i in range(min(35, len(test))):
        cells = [(test.source[i], "")]
        cells += [(p[i].nan_to_num(0.5), f"{ratings[name].score[i]:.1f}") for name, p in edited.items()]
        gallery.row(test.instruction[i], [*cells, (test.target[i], "")])
    report.gallery("Held-out edits, with oracle ratings", gallery)
    report.histogram(
        "Oracle ratings", {name: rating.score.tolist() for name, rating in ratings.items()}, 0, 10, x="rating"
    )
    logs = {
        name: read_log(path)
        for name, path in {main: folder, **{p.name: p for p in sorted(folder.glob("variants/*"))}}.items()
    }
    report.lines(
        "Training loss",
        {name: [(line["step"], line["loss"]) for line in log] for name, log in logs.items() if log},
    )
    return report.save(folder / "report.html")
