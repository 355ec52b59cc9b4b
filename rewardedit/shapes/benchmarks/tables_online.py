"""Table of online reinforcement learning of the small editor."""

from typing import Any

from table_parts import Result, difference, markdown, measured

ARMS = {
    "base": "base",
    "nft": "**DiffusionNFT**",
    "nft_masked": "DiffusionNFT, credit inside the changed region",
    "pairs": "plain fine-tuning on right targets",
    "refl": "ReFL, with the same targets",
    "dpo": "online DPO",
    "flow_grpo": "Flow-GRPO",
}


def online_rl(result: Result) -> str:
    """Oracle, reward, change outside the mask and red flags of each arm that was run."""
    head = ["editor", "updates", "minutes", "steps, guidance scale", "oracle (0–10)"]
    head += ["− base, 95 % interval", "− plain fine-tuning", "`adiee`", "that of the monitor, first → last"]
    head += ["change outside the mask − base's", "red flags"]
    rows = [_row(result, arm, words) for arm, words in ARMS.items() if arm in result["means"]]
    below = f"n = {result['n']} held-out edits. {measured(result)}{_kept(result.get('kept', {}))}"
    if result["not_run"]:
        names = "; ".join(ARMS[arm].strip("*") for arm in result["not_run"])
        below = f"Not run: {names}. {below}"
    return markdown(head, rows, below)


def _kept(kept: dict[str, dict[str, str]]) -> str:
    """Arms of earlier runs, whose figures were kept."""
    by_run: dict[tuple[str, str], list[str]] = {}
    for arm, origin in kept.items():
        by_run.setdefault((origin["date"], origin["commit"][:8]), []).append(ARMS[arm].strip("*"))
    runs = [f"{'; '.join(names)} ({date}, commit {commit})" for (date, commit), names in by_run.items()]
    if not runs:
        return ""
    return (
        f" From earlier runs with the same base: {', and '.join(runs)}. Arms of different runs are compared "
        "with the base alone."
    )


def _row(result: Result, arm: str, words: str) -> tuple[str, ...]:
    means, settings = result["means"][arm], result["settings"][arm]
    training = result["trainings"].get(arm)
    minus_base = result["differences"]["base"].get(arm, {})
    minus_pairs = result["differences"].get("pairs", {}).get(arm, {})
    length = ("", "") if training is None else (f"{training['updates']:,}", f"{training['minutes']:.0f}")
    outside = minus_base.get("change_outside")
    return (
        words,
        *length,
        f"{settings['steps']}, {settings['text_guidance']:g}",
        f"{means['oracle']:.2f}",
        difference(minus_base["oracle"]) if minus_base else "",
        difference(minus_pairs["oracle"]) if minus_pairs and arm != "base" else "",
        f"{means['adiee']:.2f}",
        "" if training is None else f"{training['first']['adiee']:.2f} → {training['last']['adiee']:.2f}",
        difference(outside, 4) if outside else "",
        "" if training is None else _flags(result["flags"][arm], training),
    )


def _flags(flag: str | None, training: dict[str, Any]) -> str:
    """Signs of hacking in the test edits, and the number of checks during the training that were flagged."""
    signs = [sign.split(" ")[0] for sign in flag.split("; ")] if flag else ["none"]
    checks = training["flags"]
    return ", ".join(signs) + (f"; {checks} while training" if checks else "")
