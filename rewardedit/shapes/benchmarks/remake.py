"""Recomputes recorded figures that are missing or come from an earlier world or editor:
python rewardedit/shapes/benchmarks/remake.py [NAME …]

Without names, all that are out of date, each after those that it needs; with names, only these, whatever
their age. Comparisons of editors are runs in runs/NAME; an interrupted one is resumed. The first command that
fails ends the program; results until then are kept.
"""

import subprocess
import sys
from pathlib import Path

from common import RESULTS, ROOT, read_command_line
from hacking_runs import SEEDS
from record import record
from table_parts import is_current, read

from rewardedit.cli.recipes import run_name

FOLDERS = (Path(__file__).parent, ROOT / "benchmarks")
LABELS = (
    "shapes/reward-conditioned",
    *("data.limit=28000", "train.max_steps=1600", "train.lr_warmup_steps=50", "train.ema=0.995"),
    "variants=[conditioned]",
)
VIFI_CLIP = "relabel.scorer={vifi_clip: {checkpoint: shapes/vifi-clip}}"
ADIEE = "relabel.scorer={adiee: {checkpoint: shapes/adiee}}"
REWARDS = ("shapes/refl", "reward.scale=quantiles", "variants=[refl]")
# result: recipe whose run it is, and its settings
RUNS: dict[str, list[str]] = {
    "quickstart": ["quickstart"],
    # the best-scored rows are right less often by ViFi-CLIP than by CLIP-D with captions: fifths of the rows
    "quickstart-without-captions": ["quickstart", VIFI_CLIP, "relabel.upper=null"],
    "shapes-reward-conditioned": ["shapes/reward-conditioned"],
    # Comparison of labellers, with a quarter of the updates: one grid, one set of rows, one seed. If a scorer
    # finds flawed rows nearly as well as CLIP-D with captions, five is the best 55 % of the rows (97 % of
    # which are right on val; by adiee 94 %); for other scorers it is the best fifth.
    "labels-clip-d": [*LABELS],
    "labels-clip-d-instructions": [
        *LABELS,
        "relabel.scorer={clip_d: {checkpoint: shapes/clip, text: instruction}}",
        "relabel.upper=null",
    ],
    "labels-vifi-clip": [*LABELS, VIFI_CLIP, "relabel.upper=null"],
    "labels-adiee": [*LABELS, ADIEE],
    "labels-adiee-data": [  # ADIEE App. B: edits of the scorer's own data, relabelled
        *LABELS,
        "data={name: labelled, path: runs/shapes-adiee-data/compared/rows, size: 64, "
        "limit: 28000, edit_types: [target, source, unreached, untouched]}",
        ADIEE,
        "relabel.upper=null",
    ],
    "shapes-reward-conditioned-words": [
        "shapes/reward-conditioned",
        "variants=[words]",
        "train.text_encoder_lr=2e-5",  # the small text encoder does not know the labels' words
    ],
    "shapes-refl": ["shapes/refl"],
    # by quantiles: the hinge of 10 is for scores from 0 to 10; vifi_clip's are about 75, clip_d's below 1
    "shapes-refl-vifi-clip": [*REWARDS, "reward.scorer={vifi_clip: {checkpoint: shapes/vifi-clip}}"],
    "shapes-refl-clip-d": [*REWARDS, "reward.scorer={clip_d: {checkpoint: shapes/clip}}"],
    "shapes-refl-clip-d-instructions": [
        *REWARDS,
        "reward.scorer={clip_d: {checkpoint: shapes/clip, text: instruction}}",
    ],
    "shapes-refl-conditioned": [
        "shapes/refl",
        "base=runs/shapes-reward-conditioned-words",  # rollouts support text prompts only
        "labels.scorer={clip_d: {checkpoint: shapes/clip}}",
        "variants=[refl,pairs_only]",
    ],
}
# result: the program that writes it
PROGRAMS = {
    "shapes-text-to-image": "rate_text_to_image.py",
    "shapes-editors": "rate_editors.py",
    "flow-editor": "package_flow_editor.py",
    "guidance": "guidance.py",
    "best-of-n": "best_of_n.py",
    "reward-guidance": "reward_guidance.py",
    "dice": "dice.py",
    "dice-ablations": "dice_ablations.py",
    "agreement": "agreement.py",
    "heat": "heat.py",
    "retrieval": "retrieval.py",
    "throughput": "throughput.py",
    "refl-step": "refl.py",
    "bpm": "bpm.py",
    "bpm-parts": "bpm_parts.py",
    "bpm-guidance": "bpm_guidance.py",
    "adiee": "adiee.py",
    "model-or-data": "model_or_data.py",
    "adiee-ablations": "adiee_ablations.py",
    "vifi-rows": "vifi_rows.py",
    "hacking": "hacking.py",
    "centres": "centres.py",
    "prompts": "prompts.py",
    "reward-scale": "reward_scale.py",
    "online-rl": "online_rl.py",
}
# Programs with several parts, and the command line words of each.
PARTS = {
    "hacking": [
        *(["train", "runs/hacking", pool, kind] for pool, kind in SEEDS),
        ["judge", "runs/hacking"],
    ],
    "online-rl": [["runs/online-rl"]],
}
# Recipes whose runs a result needs, without a recorded result of their own.
NEEDS = {
    "shapes-editors": ["shapes/comparison-editors"],
    "flow-editor": ["shapes/flow-editor"],
    "labels-adiee-data": ["shapes/adiee-data"],
    "dice-ablations": ["shapes/dice-ablations"],
}
ORDER = ("shapes-editor", *RUNS, *PROGRAMS)


def commands(name: str) -> list[list[str]]:
    """Commands that make a result."""
    python = sys.executable
    made = [train(run_name(recipe), [recipe]) for recipe in NEEDS.get(name, [])]
    if name in RUNS:
        return [*made, train(name, RUNS[name])]
    file = "rate_editor.py" if name == "shapes-editor" else PROGRAMS[name]
    program = str(next(folder / file for folder in FOLDERS if (folder / file).is_file()))
    return [*made, *([python, program, *words, "--write"] for words in PARTS.get(name, [[]]))]


def train(name: str, words: list[str]) -> list[str]:
    resume = ["--resume"] if (ROOT / "runs" / name).is_dir() else []
    program = str(Path(sys.executable).with_name("rewardedit"))
    return [program, "train", *words, f"name={name}", *resume]


def remake(name: str) -> None:
    """Makes and stores a result.

    Raises:
        CalledProcessError: if a command fails.
    """
    for command in commands(name):
        subprocess.run(command, cwd=ROOT, check=True)
    if name in RUNS:
        record(ROOT / "runs" / name, " ".join(["rewardedit train", *RUNS[name]]), RESULTS)


def out_of_date() -> list[str]:
    """Results that are missing or come from an earlier world or editor, in the order in which to make
    them.
    """
    return [name for name in ORDER if (result := read(name)) is None or not is_current(result)]


if __name__ == "__main__":
    line = read_command_line(__doc__, "NAME")
    for name in line.words or out_of_date():
        if name not in ORDER:
            sys.exit(f"{name}: expected one of {', '.join(ORDER)}")
        print(f"{RESULTS / name}.json", flush=True)
        if line.write:
            remake(name)
