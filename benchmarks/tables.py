"""Writes the tables of the README and of benchmarks/README.md from the recorded results:
python benchmarks/tables.py --write
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from command_line import read_command_line
from table_parts import (
    Result,
    markdown,
    recorded,
    where,
)
from tables_adiee import (
    adiee,
    adiee_ablations,
    adiee_data,
    adiee_graded,
    model_or_data,
    prefix,
    vifi_rows,
    vlm,
)
from tables_bpm import bpm, bpm_best_of, bpm_guidance, bpm_parts, bpm_regions
from tables_editors import (
    best_of_n,
    by_edit_type,
    comparison,
    editors,
    guidance,
    hacking,
    labellers,
    refl,
    refl_step,
    refl_watch,
    regions,
    reward_conditioning,
    reward_guidance,
    steps_of_editor,
    text_to_image,
)
from tables_scorers import agreement, agreement_by_edit_type, heat, retrieval, scorers, throughput

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")
KILLED = {
    "candidates": "candidates",
    "relabelled": "scores and labels (relabel)",
    "cache": "latents (cache)",
    "methods": "edits of one method",
    "measured": "what is measured of them",
    "rows": "labelled rows",
    "pipeline": "training",
    "relabel": "`rewardedit relabel`",
    "score": "`rewardedit score`",
    "shards": "shares of a relabelling",
    "share": "`rewardedit share`",
    "adiee_data": "all of `adiee_data`",
    "adiee_scorer": "all of `adiee_scorer`",
    "refl": "all of `refl`",
}


def startup(result: Result) -> str:
    """CPU seconds of short commands, before and after."""
    seconds = result["cpu_seconds"]
    columns = {name: words for name, words in (("before", "before"), ("after", "now")) if name in seconds}
    rows = [
        (f"`{command}`", *(f"{seconds[name][command]:.2f}" for name in columns))
        for command in seconds["after"]
    ]
    earlier = f"Before is commit {result['before'][:7]}. " if "before" in seconds else ""
    medians = f"Medians of {result['n']} runs, the training's of one."
    head = ("command", *(f"{words}, CPU s" for words in columns.values()))
    return markdown(head, rows, f"{medians} {earlier}{where(result)}")


def kills(result: Result) -> str:
    """Number of killed and resumed runs that give the same result as an uninterrupted run."""
    rows = []
    for stage, found in result["stages"].items():
        moments = found["moments"]
        between = f"{min(moments):.2f} and {max(moments):.2f} s after its start"
        equal = f"{found['equal']} of {len(moments)}"
        rows.append((KILLED[stage], str(found["killed_in_it"]), between, equal))
    return markdown(("stage", "kills", "between", "equal to the unbroken run"), rows, where(result))


def stops(result: Result) -> str:
    """Number of killed or stopped runs that, once resumed, give the same result as an uninterrupted run."""
    signals = ("SIGKILL", "SIGTERM", "SIGSTOP")
    rows = [
        (
            KILLED[stage],
            *(str(found["signals"][name]) for name in signals),
            f"{found['equal']} of {len(found['moments'])}",
        )
        for stage, found in result["stages"].items()
    ]
    return markdown(("run", *signals, "equal to the unbroken run"), rows, where(result))


def code_metrics(result: Result) -> str:
    """Metrics of the code before and after its restructuring."""
    rows = [
        (name, f"{before:g}", f"{result['after'][name]:g}")
        for name, before in result["before"].items()
        if name != "places"
    ]
    return markdown(("", "before", "after"), rows, where(result))


def suite(result: Result) -> str:
    """Times and results of `make test` and `make faults`."""
    faults = result["faults"]
    passed = f"{result['n']} tests pass in {result['seconds']:.0f} s ({result['cpu_seconds']:.0f} CPU s)"
    before = f"at {result['commit_before']} it took {result['seconds_before']:.0f} s"
    red = f"{faults['red']} of {faults['planted']} planted faults turn their tests red"
    return (
        f"`make test`: {passed} on two idle cores; {before}. {result['device']}, {result['date']}.\n"
        f"`make faults`: {red}, in {faults['seconds']:.0f} s, {faults['date']}."
    )


# by name in the pages: the recorded result, if there is exactly one, and the function that writes the table
TABLES: dict[str, Callable[[], str]] = {
    "reward-conditioning": reward_conditioning,
    "labellers": labellers,
    "scorers": scorers,
    **{
        name: partial(recorded, result, write)
        for name, result, write in (
            ("quickstart", "quickstart", comparison),
            ("quickstart-without-captions", "quickstart-without-captions", comparison),
            ("shapes-reward-conditioned", "shapes-reward-conditioned", comparison),
            ("shapes-editor", "shapes-editor", by_edit_type),
            ("steps-of-editor", "shapes-editor", steps_of_editor),
            ("shapes-text-to-image", "shapes-text-to-image", text_to_image),
            ("shapes-editors", "shapes-editors", editors),
            ("regions", "shapes-detector", regions),
            ("guidance", "guidance", guidance),
            ("best-of-n", "best-of-n", best_of_n),
            ("reward-guidance", "reward-guidance", reward_guidance),
            ("refl", "shapes-refl", refl),
            ("refl-watch", "shapes-refl", refl_watch),
            ("hacking", "hacking", hacking),
            ("refl-step", "refl-step", refl_step),
            ("throughput", "throughput", throughput),
            ("retrieval", "retrieval", retrieval),
            ("agreement", "agreement", agreement),
            ("agreement-by-kind", "agreement", agreement_by_edit_type),
            ("heat", "heat", heat),
            ("startup", "startup", startup),
            ("kills", "kills", kills),
            ("kills-stopped", "kills-stopped", stops),
            ("kills-stopped-trainings", "kills-stopped-trainings", stops),
            ("adiee-data", "adiee-data", adiee_data),
            ("adiee-data-damaged", "adiee-data-damaged", adiee_graded),
            ("adiee-data-compared", "adiee-data-compared", adiee_graded),
            ("adiee-data-moved", "adiee-data-moved", adiee_graded),
            ("adiee-data-kills", "kills-adiee-data", kills),
            ("shapes-vlm", "shapes-vlm", vlm),
            ("adiee", "adiee", adiee),
            ("prefix", "prefix", prefix),
            ("model-or-data", "model-or-data", model_or_data),
            ("adiee-ablations", "adiee-ablations", adiee_ablations),
            ("vifi-rows", "vifi-rows", vifi_rows),
            ("bpm", "bpm", bpm),
            ("bpm-regions", "bpm", bpm_regions),
            ("bpm-parts", "bpm-parts", bpm_parts),
            ("bpm-guidance", "bpm-guidance", bpm_guidance),
            ("bpm-best-of-8", "bpm-guidance", bpm_best_of),
            ("code-metrics", "code-metrics", code_metrics),
            ("code-metrics-house", "code-metrics-house", code_metrics),
            ("suite", "suite", suite),
        )
    },
}


def fill(text: str) -> str:
    """A page with all tables regenerated."""
    for name, make in TABLES.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, make=make: f"{found[1]}{make()}\n{found[2]}", text, flags=re.S)
    return text


def main(write: bool) -> int:
    """Writes, or names, the pages whose tables differ from the results; returns their number."""
    changed = [page for page in PAGES if fill(page.read_text()) != page.read_text()]
    for page in changed:
        print(f"{page}: {'written' if write else 'is to be written; --write does it'}")
        if write:
            page.write_text(fill(page.read_text()))
    return 0 if write else len(changed)


if __name__ == "__main__":
    sys.exit(main(read_command_line(__doc__).write))
