"""Online reinforcement learning of the small editor beside plain fine-tuning and ReFL:
torchrun --standalone --nproc_per_node 2 rewardedit/shapes/benchmarks/online_rl.py OUT [ARM …] --write

Each arm is a run of a recipe in OUT/ARM, with as many updates as take about 20 minutes in two processes of
one thread. As soon as it is trained, it edits the held-out rows at the settings of the recipes' grid that are
best for it on val. A program that was stopped goes on by the same command. Without ARM all arms are run, in
order; with "base" none is. The figures are of all arms that are done in OUT; those of another arm are taken
from the tracked result, if the base is the same there, and arms without any are named.
"""

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, read_command_line
from torch import Tensor

from rewardedit import cli, devices
from rewardedit import config as configs
from rewardedit.evaluation import comparison_metrics as metrics_of
from rewardedit.evaluation.compare import Judge, edit_held_out, read_edits
from rewardedit.evaluation.hacking import hacking_signs
from rewardedit.evaluation.held_out import HeldOut, held_out
from rewardedit.evaluation.statistics import valid_means
from rewardedit.models import EXACT
from rewardedit.processes import print_on_main, processes
from rewardedit.scorer_spec import spec_name
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.stages.stage import is_finished, require_same
from rewardedit.training.monitor import watched
from rewardedit.training.run import minutes_spent
from rewardedit.training.run_folder import CONFIG
from rewardedit.untrusted import read_json_file

BASE = "base"
RIGHT = "data.shapes={quality_mix: {right: 1.0}}"  # each row's edit is its target
# arm: a recipe and its settings. Evaluation follows here, so that the base is edited with once.
ARMS: dict[str, list[str]] = {
    "nft": ["shapes/nft", "variants=[nft]", "reward.noise_mask=null"],
    "nft_masked": ["shapes/nft", "variants=[nft]"],
    "pairs": [
        *("shapes/refl", "variants=[pairs_only]", RIGHT),
        *("train.max_steps=3200", "train.validate_every=1600", "train.checkpoint_every=250"),
    ],
    "refl": ["shapes/refl", "variants=[refl]", RIGHT, "train.max_steps=330", "train.validate_every=165"],
    "dpo": ["shapes/dpo", "variants=[dpo]"],
    "flow_grpo": ["shapes/flow-grpo"],
}
OTHERS = (BASE, "pairs", "nft")  # arms that all others are compared with
RESULT = "online-rl"
BY_ARM = ("means", "flags", "health", "settings", "trainings")  # parts of the figures that are of one arm
STOPPED = (130, 143)  # exit codes of a training that was told to stop
COUNT_EVERY = 30.0  # seconds between two counts of the minutes of a training
PROGRAM = "rewardedit/shapes/benchmarks/online_rl.py OUT"


def recipe_of(arm: str) -> Any:
    """Settings of an arm's run; of the first arm's for the base."""
    recipe, *settings = ARMS[next(iter(ARMS)) if arm == BASE else arm]
    return cli.load_recipe(recipe, settings)[1]


def result_of(arm: str, out: Path) -> Path:
    """Folder of an arm's trained editor."""
    return out / arm / recipe_of(arm).train.result


def train(arm: str, out: Path) -> bool:
    """Trains an arm, or goes on with it; returns False if it fails.

    Raises:
        SystemExit: if the training was told to stop.
        ValueError: if it was trained with other settings.
    """
    folder = out / arm
    is_trained = is_finished(result_of(arm, out))
    resume = ["--resume"] if (folder / CONFIG).is_file() else []
    processes().wait_for_everyone()  # all have looked before one of them writes
    if is_trained:
        settings = configs.parse_value(configs.dump(without_evaluation(arm)))
        require_same(folder, configs.load_yaml(folder / CONFIG), settings)
        return True
    with counted_minutes(folder):
        code = cli.main(["train", *words_of(arm), "--out", str(folder), *resume])
    if code in STOPPED:
        sys.exit(code)
    return code == 0


@contextmanager
def counted_minutes(folder: Path) -> Iterator[None]:
    """Within the block, counts the minutes of a run again and again, so that a start that is killed counts
    too.
    """
    spent = minutes_spent(folder)
    ended = threading.Event()

    def count() -> None:
        while not ended.wait(COUNT_EVERY):
            if (folder / CONFIG).is_file():
                spent()

    counter = threading.Thread(target=count, daemon=True)
    counter.start()
    try:
        yield
    finally:
        ended.set()
        counter.join()
    if (folder / CONFIG).is_file():
        spent()


def words_of(arm: str) -> list[str]:
    """Recipe and settings of an arm's training."""
    return [*ARMS[arm], "evaluate=null"]


def without_evaluation(arm: str) -> Any:
    """Settings that an arm is trained with."""
    recipe, *settings = words_of(arm)
    return cli.load_recipe(recipe, settings)[1]


def edit(arm: str, out: Path, rows: tuple[HeldOut, HeldOut]) -> tuple[list[Path], dict[str, Any]]:
    """Files of an arm's test edits, and the settings chosen on val; both are made once."""
    recipe = recipe_of(arm)
    editor = recipe.base if arm == BASE else str(result_of(arm, out))
    folder = out / arm / "evaluation"
    paths, _, chosen = edit_held_out({arm: editor}, *rows, recipe.evaluate, Judge(EXACT), folder)
    return paths[arm], chosen[arm]


def is_done(arm: str, out: Path) -> bool:
    """True once all test edits of an arm are made."""
    return is_finished(out / arm / "evaluation" / arm / "test")


def run(out: Path, arms: Sequence[str], rows: tuple[HeldOut, HeldOut]) -> None:
    """Trains the arms in order; each edits the held-out rows once it is trained."""
    for arm in (BASE, *(name for name in arms if name != BASE)):
        print_on_main(f"arm {arm}")
        if arm == BASE or train(arm, out):
            edit(arm, out, rows)
        else:
            print_on_main(f"arm {arm}: failed; the same command tries it again")


def figures(edits: dict[str, Tensor], test: HeldOut, scorers: dict[str, Scorer]) -> dict[str, Any]:
    """Means, differences and signs of reward hacking of each arm's edits (n, 3, h, w), the base's first.

    Args:
        scorers: the training reward, then the held-out one.
    """
    ratings = {arm: test.rate(images) for arm, images in edits.items()}
    signs = {arm: hacking_signs(test.source, images, test.batch.mask) for arm, images in edits.items()}
    scores = metrics_of.score_values(metrics_of.scores(edits, test, scorers))

    assert test.batch.mask is not None
    covered = test.batch.mask.flatten(1).amin(1) == 1  # an edit of the whole image has no outside
    values: dict[str, dict[str, Tensor]] = {}
    for arm in edits:
        outside = signs[arm]["change_outside"].masked_fill(covered, torch.nan)
        values[arm] = {EXACT: ratings[arm].score, **scores[arm], "change_outside": outside}
    return {
        "n": len(test),
        "means": {arm: valid_means(of_arm) for arm, of_arm in values.items()},
        # by the other arm, the arm, and the value: arm − other
        "differences": {other: differences(values, other, test) for other in OTHERS if other in values},
        "flags": metrics_of.flags(scores, signs, list(scorers)),
        "health": {arm: valid_means(of_arm) for arm, of_arm in signs.items()},
    }


def differences(values: dict[str, dict[str, Tensor]], other: str, test: HeldOut) -> dict[str, Any]:
    """Each arm − another one by value, with paired intervals over source images."""
    found: dict[str, Any] = {}
    for arm, of_arm in values.items():
        if arm != other:
            pairs = {name: (value, values[other][name]) for name, value in of_arm.items()}
            found[arm] = {name: metrics_of.paired(*pair, test) for name, pair in pairs.items()}
    return found


def training_of(arm: str, out: Path) -> dict[str, Any]:
    """Command, length and monitored values of an arm's training."""
    own = recipe_of(arm).train
    minutes = json.loads((out / arm / "minutes.json").read_text())["minutes"]
    return {
        "command": " ".join(["rewardedit train", *words_of(arm)]),
        "updates": own.max_steps,
        "images": own.max_steps * own.batch_size,
        "minutes": round(minutes, 1),
        **watched({arm: result_of(arm, out)})[arm],
    }


def collect(out: Path, rows: tuple[HeldOut, HeldOut]) -> dict[str, Any]:
    """The figures of all arms that are done."""
    recipe = recipe_of(BASE)
    specs = (recipe.reward.scorer, recipe.monitor.held_out)
    scorers = {spec_name(spec): load_scorer(spec).to(devices.default_device()) for spec in specs}

    done = [arm for arm in (BASE, *ARMS) if is_done(arm, out)]
    edits = {}
    settings = {}
    for arm in done:
        paths, settings[arm] = edit(arm, out, rows)
        edits[arm] = read_edits(paths)
    return {
        **figures(edits, rows[1], scorers),
        "settings": settings,
        "trainings": {arm: training_of(arm, out) for arm in done if arm != BASE},
        "not_run": [arm for arm in ARMS if arm not in done],
    }


def with_recorded(now: dict[str, Any], recorded: dict[str, Any] | None) -> dict[str, Any]:
    """The figures with those of the recorded arms that they lack, each with its commit and date in `kept`.
    Two arms are compared in pairs only if they were measured in one run.

    Raises:
        ValueError: if the recorded figures are of another base, or of other rows.
    """
    if recorded is None:
        return now
    for key in ("means", "settings"):
        if recorded["n"] != now["n"] or recorded[key][BASE] != now[key][BASE]:
            raise ValueError(
                f"results/{RESULT}.json: expected the {key} of this base on {now['n']} rows; got others, "
                "whose arms cannot stand beside it: remove the file and run all arms"
            )
    origin = {"commit": recorded["commit"], "date": recorded["date"]}
    kept = {
        arm: recorded.get("kept", {}).get(arm, origin) for arm in recorded["means"] if arm not in now["means"]
    }
    known = {BASE, *kept}  # a recorded pair stands if neither arm is measured anew
    joined = {**now, "kept": kept, "not_run": [arm for arm in now["not_run"] if arm not in kept]}
    for key in BY_ARM:
        of_kept = {arm: recorded[key][arm] for arm in kept if arm in recorded[key]}
        joined[key] = {**of_kept, **now[key]}
    compared = dict(now["differences"])
    for other, of_other in recorded["differences"].items():
        pairs = {arm: found for arm, found in of_other.items() if {arm, other} <= known}
        compared[other] = {**pairs, **compared.get(other, {})}
    return {**joined, "differences": compared}


def main() -> None:
    line = read_command_line(__doc__, "OUT [ARM …]")
    if not line.words or not {BASE, *ARMS}.issuperset(line.words[1:]):
        sys.exit(f"expected OUT and any of {', '.join((BASE, *ARMS))}; got {' '.join(line.words) or 'none'}")
    cli.quiet()
    out = Path(line.words[0])
    recipe = recipe_of(BASE)
    rows = held_out(recipe.evaluate, recipe.data)
    run(out, line.words[1:] or list(ARMS), rows)
    processes().wait_for_everyone()
    if processes().is_main_process:
        with torch.no_grad():
            number = processes().num_processes
            start = f"torchrun --standalone --nproc_per_node {number}" if number > 1 else "python"
            path = RESULTS / f"{RESULT}.json"
            recorded = read_json_file(path) if path.is_file() else None
            line.keep(RESULT, with_recorded(collect(out, rows), recorded), f"{start} {PROGRAM}")


if __name__ == "__main__":
    main()
