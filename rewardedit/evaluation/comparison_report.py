"""The comparison of editors as text."""

from typing import Any

from rewardedit.models import EXACT


def table(metrics: dict[str, Any], main: str) -> str:
    """The comparison as text: by the exact rating of a world, or by every scorer."""
    return _exact_table(metrics, main) if EXACT in metrics else _scorer_table(metrics, main)


def _scorer_table(metrics: dict[str, Any], main: str) -> str:
    means = metrics["rewards"]
    lines = [
        f"{metrics['n']} held-out edits; mean, {main} − variant with its 95 % interval over source images, "
        f"{main}'s wins and losses, on edits that both have"
    ]
    for scorer, differences in metrics["differences"].items():
        chosen = " (chose the settings)" if scorer == metrics["chosen_by"] else ""
        lines.append(f"  {scorer}{chosen}")
        for name, values in means.items():
            difference = differences.get(name)
            mean = values[scorer] if difference is None else difference["mean_b"]
            line = f"    {name:<24}" + ("      –" if mean is None else f"{mean:7.3f}")
            if difference is not None:
                low, high = difference["ci95"]
                line += f"  {difference['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
                line += f"  {difference['wins']} : {difference['losses']}"
                if difference["n"] < metrics["n"]:
                    line += f", on {difference['n']} of them, where {main} has {difference['mean_a']:.3f}"
            lines.append(line)
    return "\n".join(lines)


def _exact_table(metrics: dict[str, Any], main: str) -> str:
    exact = metrics[EXACT]
    lines = [
        f"{EXACT} mean (0–10) on {exact['n']} held-out edits; difference of {main} − variant, 95 % interval"
    ]
    for name in metrics["kinds"]:
        difference = exact["differences"].get(name)
        versus = ""
        if difference is not None:
            low, high = difference["ci95"]
            versus = f"  {difference['difference']:+.2f} [{low:+.2f}, {high:+.2f}]"
            if difference["n"] < exact["n"]:
                versus += f", on {difference['n']} of them, where {main} has {difference['mean_a']:.2f}"
        mean = exact[name] if difference is None else difference["mean_b"]
        lines.append(f"  {name:<24}{mean:6.2f}{versus}")
    # A share of nothing says nothing.
    gain = f"{100 * exact['relative_gain']:+.1f} %" if exact["base"] >= 0.05 else "–"
    return "\n".join([*lines, f"  gain over the base: {gain}"])
