"""Plain names of scorers, variants and signs, each with a line that says what it measures and which direction
is better.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rewardedit.models import EXACT
from rewardedit.scorers import Scorer

BETTER = "Higher is better."
WORSE = "Lower is better."
NEITHER = "Neither direction is better; a large change is a warning."


@dataclass(frozen=True)
class PlainName:
    """A name for people, and a sentence on what is measured."""

    name: str
    says: str
    higher_is: int = 1  # 1: better, −1: worse, 0: neither


SCORERS = {
    "clip_d": PlainName("CLIP direction", "Agreement of the image's change with the caption's change."),
    "clip_t": PlainName("CLIP-T", "Agreement of the edited image with the target caption or instruction."),
    "clip_i": PlainName("CLIP-I", "Similarity to the target image by CLIP."),
    "dino_i": PlainName("DINO-I", "Similarity of content by DINO."),
    "l1": PlainName("L1 similarity", "1 − mean absolute difference of pixels."),
    "l2": PlainName("L2 similarity", "1 − mean squared difference of pixels."),
    "psnr": PlainName("PSNR", "Closeness of pixels in decibels."),
    "ssim": PlainName("SSIM", "Similarity of structure."),
    "lpips": PlainName("LPIPS similarity", "Negative perceptual distance, at most 0."),
    "vifi_clip": PlainName("ViFi-CLIP", "Agreement of the change with the instruction, −100 to 100."),
    "bpm": PlainName("BPM", "The named objects change as asked and the rest stays."),
    "adiee": PlainName("ADIEE", "Success of the edit by a trained vision-language scorer, 0 to 10."),
    "dice": PlainName("DICE", "Share of the changed area that was asked for."),
    "dice_clip_i": PlainName("CLIP-I by DICE", "Similarity to the source where no change was asked for."),
    "dice_clip_t": PlainName("CLIP-T by DICE", "Agreement with the caption where the change was asked for."),
    "vlm_judge": PlainName("Vision-language judge", "Grade by a vision-language model."),
    EXACT: PlainName("Exact rating", "Success of the edit, 0 to 10, from the known truth."),
}
SIGNS = {
    "copied": PlainName("Copies of the source", f"Share of edits that return the source. {WORSE}", -1),
    "change_outside": PlainName(
        "Change outside the mask", f"Mean change of pixels where none is wanted, 0 to 1. {WORSE}", -1
    ),
    "strongest_change": PlainName(
        "Strongest change", f"Mean change of the 2 % of pixels that changed most, 0 to 1. {NEITHER}", 0
    ),
    "saturation": PlainName("Saturation", f"Colourfulness of the edited image, 0 to 1. {NEITHER}", 0),
    "edges": PlainName("Fine detail", f"Mean step between neighbouring pixels, 0 to 1. {NEITHER}", 0),
    "entropy": PlainName("Variety of colours", f"Entropy of the colour histogram, 0 to 6 bits. {NEITHER}", 0),
}
VARIANTS = {"conditioned_five": "asked for five", "conditioned_one": "asked for one"}


def scorer_name(name: str, scorer: Scorer | None = None) -> PlainName:
    """The plain name of a scorer as results call it; its own name for a sum or a user's scorer."""
    plain = SCORERS.get(name, PlainName(name, ""))
    against = getattr(scorer, "against", None)
    region = getattr(scorer, "region", "all")
    said = [plain.says]
    if against is not None and name != "clip_i":
        said.append(f"Compared with the {against}.")
    if region != "all":
        said.append(f"Only {region} the mask.")
    said.append(BETTER)
    return PlainName(plain.name, " ".join(text for text in said if text))


def sign_name(name: str) -> PlainName:
    """The plain name of a sign of reward hacking, a scorer, or another value of the monitor."""
    return SIGNS.get(name) or scorer_name(name)


def variant_name(name: str) -> str:
    return VARIANTS.get(name, name.replace("_", " "))


def signed(value: float, digits: int) -> str:
    """A difference with its sign, e.g. "+0.24" or "−0.10"; 0 has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def fixed(value: float | None, digits: int) -> str:
    """A number with so many decimals; "–" for none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def decimals(values: Iterable[float | None]) -> int:
    """Decimal places that all of a table's numbers share: 2 for scales such as 0 to 10, else 3; None stands
    for a missing number.
    """
    return 2 if any(value is not None and abs(value) >= 2 for value in values) else 3


def decimals_of_widths(widths: Iterable[float], least: int) -> int:
    """Decimal places, at least `least` and at most 6, with which the narrowest of these intervals has two
    digits, so that it does not read "0.000 [0.000, 0.000]".
    """
    places = [1 - math.floor(math.log10(width)) for width in widths if width > 0]
    return min(max([least, *places]), 6)
