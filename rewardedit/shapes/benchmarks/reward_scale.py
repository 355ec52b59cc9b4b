"""ReFL by the small `adiee`, with the unchanged score and with quantiles of the true targets' scores:
python rewardedit/shapes/benchmarks/reward_scale.py [RUNS] [SETTING=VALUE …]

Both train on right edits only, as in MagicBrush, with the same rows, steps and seeds; all other settings are
those of the recipe shapes/refl. Each editor, including the base, uses the setting of one grid that is best
for it on val, and test is run once. RUNS/reward-scale keeps results: an interrupted program is resumed.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import read_command_line

from rewardedit.cli import quiet
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import DataConfig
from rewardedit.evaluation.compare import compare
from rewardedit.evaluation.evaluate_config import EvaluateConfig
from rewardedit.trainers import refl
from rewardedit.training.reward import load_rewards

SCALES = ("none", "quantiles")
ROWS = 192
STEPS = 40
SETTINGS = (
    "variants=[refl]",
    "evaluate=null",
    f"data={{name: shapes, limit: {ROWS}, offset: 140000, shapes: {{quality_mix: {{right: 1.0}}}}}}",
    "reward.num_inference_steps=[6]",
    f"train.max_steps={STEPS}",
    "train.batch_size=8",
    "train.lr_warmup_steps=4",
    "train.ema=0.95",
    "train.validate_every=0",
    "monitor.n=4",
)
EVALUATE = EvaluateConfig(
    data=DataConfig("shapes"),
    n=560,
    val_n=56,
    num_inference_steps=(6,),
    guidance_scale=(1.25, 1.5, 1.75, 2.0),
    image_guidance_scale=(1.2,),
)


def main(folder: Path, words: list[str]) -> dict[str, Any]:
    results = {}
    for scale in SCALES:
        asked = [*SETTINGS, f"reward.scale={scale}", *words]
        config: refl.Config = replace(load_recipe("shapes/refl", asked)[1], name=f"scale-{scale}")
        run = folder / config.name
        results[scale] = refl.train(config, run, resume=run.is_dir())
    scorers = load_rewards(config.reward.scorer, config.monitor.held_out)
    metrics = compare(EVALUATE, config.base, results, scorers, folder)
    assert metrics is not None
    scale = json.loads((folder / config.name / "relabelled" / "scale.json").read_text())
    return {
        "n": EVALUATE.n,
        "rows": config.data.limit,
        "steps": config.train.max_steps,
        "knots": scale["knots"],
        **metrics,
    }


if __name__ == "__main__":
    line = read_command_line(__doc__, "FOLDER key=value")
    quiet()
    given = list(line.words)
    runs = Path(given.pop(0)) if given and "=" not in given[0] else Path("runs")
    command = " ".join(["python rewardedit/shapes/benchmarks/reward_scale.py", *given])
    line.keep("reward-scale", main(runs / "reward-scale", given), command)
