"""Writes the README's tables from the recorded results: python benchmarks/tables.py"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ARMS = {
    "base": "base",
    "unconditioned": "fine-tuned on the same rows and steps without conditioning",
    "best_rows_only": "best-scored rows only, with the prompt",
    "conditioned_one": "conditioned, asked for one",
    "conditioned_five": "**conditioned, asked for five**",
    "learned_embedding_five": "learned reward embedding, asked for five",
}
ASPECTS = {
    "preservation": "preservation outside the true mask (0–1)",
    "alignment": "alignment (oracle, 0–10)",
    "consistency": "consistency (oracle, 0–10)",
    "quality": "quality (oracle, 0–10)",
    "score": "oracle score (0–10)",
}
KINDS = ("add", "remove", "replace", "recolour", "resize", "move", "background")


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def comparison(name: str) -> str:
    """Oracle means of a comparison, and each arm's distance from five with its interval."""
    result = read(name)
    if result is None:
        return "Not recorded yet."
    oracle = result["oracle"]
    keys = {"base": "ci95", "conditioned_one": "ci95_vs_one"}
    lines = ["| arm | oracle mean (0–10) | five − arm, 95 % interval |", "|---|---|---|"]
    for arm, words in ARMS.items():
        if arm in oracle:
            interval = oracle.get(keys.get(arm, f"ci95_vs_{arm}"))
            versus = (
                f"{oracle['conditioned_five'] - oracle[arm]:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else ""
            )
            lines.append(f"| {words} | {oracle[arm]:.2f} | {versus} |")
    gain = f"Five over the base: {100 * oracle['relative_gain']:+.1f} %, n = {oracle['n']} held-out edits"
    return "\n".join([*lines, "", f"{gain}. {where(result)}"])


def kinds(name: str) -> str:
    """Oracle means by backdrop and kind of instruction."""
    result = read(name)
    if result is None:
        return "Not recorded yet."
    lines = [f"| background | all | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 2) + "|"]
    for backdrop, means in result["oracle"].items():
        lines.append(f"| {backdrop} | {' | '.join(f'{means[k]:.2f}' for k in ('all', *KINDS))} |")
    return "\n".join([*lines, "", f"n = {result['n']} a row. {where(result)}"])


def guidance() -> str:
    """Plain and guided edits with the intervals of their differences, and what a step costs."""
    result = read("guidance")
    if result is None:
        return "Not recorded yet."
    lines = ["| | plain | under the change mask | difference, 95 % interval |", "|---|---|---|---|"]
    for name, words in ASPECTS.items():
        found = result["guided_minus_plain"][name]
        plain, guided = (result["oracle"][arm][name] for arm in ("plain", "guided"))
        low, high = found["ci95"]
        digits = 3 if name == "preservation" else 2
        difference = f"{found['difference']:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
        lines.append(f"| {words} | {plain:.{digits}f} | {guided:.{digits}f} | {difference} |")
    costs = "; ".join(f"{name}: {100 * c['extra_share']:+.1f} %" for name, c in result["seconds_per_step"].items())
    return "\n".join(
        [*lines, "", f"n = {result['n']} held-out edits. Time a step, guided against plain: {costs}. {where(result)}"]
    )


def best_of_n() -> str:
    """Oracle means of what each scorer chooses."""
    result = read("best-of-n")
    if result is None:
        return "Not recorded yet."
    lines = [f"| chosen from {result['candidates']} by | oracle mean (0–10) | − one sample, 95 % interval |", "|---|---|---|"]
    for name, mean in result["oracle"].items():
        found = result["against_one_sample"].get(name)
        versus = f"{found['difference']:+.2f} [{found['ci95'][0]:+.2f}, {found['ci95'][1]:+.2f}]" if found else ""
        lines.append(f"| {name} | {mean:.2f} | {versus} |")
    return "\n".join([*lines, "", f"n = {result['n']} held-out edits. {where(result)}"])


def where(result: dict[str, Any]) -> str:
    return f"`{result['command']}`, {result['device']}, {result['date']}."


TABLES = {
    "quickstart": lambda: comparison("quickstart"),
    "shapes-reward-conditioned": lambda: comparison("shapes-reward-conditioned"),
    "shapes-editor": lambda: kinds("shapes-editor"),
    "guidance": guidance,
    "best-of-n": best_of_n,
}


def fill(text: str) -> str:
    """The README with every table made anew."""
    for name, make in TABLES.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)"
        text = re.sub(pattern, lambda found, make=make: f"{found[1]}{make()}{found[2]}", text, flags=re.S)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text()))
