"""Reward-conditioned prompts: a scorer's value becomes words that the editor is trained with, and that later
request a score.

ADIEE Sec. 3.4 and HIVE. The words are written by one function, `RewardPrompt.relabel`, in training and at
inference, so they are the same to the byte; ADIEE's released code differs between the two by a full stop.
"""

import string
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from rewardedit.files import to_json
from rewardedit.untrusted import CONTENT_ERRORS, read_settings_file

FILE = "reward_prompt.json"
HAIR = 1e-6  # spread of coinciding knots, as a share of the scores' range
TIED = 0.05  # knots at most this share of the median distance apart count as one


@dataclass(frozen=True)
class RewardScale:
    """Maps a scorer's values to 0–10: piecewise linear, monotone and differentiable, through `knots`.

    Values outside the knots are clamped to 0 and 10 (without gradient there), or the outer lines extended.
    Without clamping, nearly equal knots (from many rows of the same value) count as one: a line between them
    would be almost vertical, and its gradient would exceed all others.
    """

    knots: tuple[float, ...]  # increasing scorer values; knot i maps to 10 i / (len − 1)

    def __post_init__(self) -> None:
        steps = np.diff(self.knots)
        if len(self.knots) < 2 or not np.isfinite(self.knots).all() or (steps <= 0).any():
            raise ValueError(f"knots: expected at least two finite, increasing values; got {self.knots}")

    @classmethod
    def from_quantiles(cls, values: Sequence[float] | np.ndarray, levels: int = 11) -> "RewardScale":
        """Puts equal shares of a data set's values between neighbouring knots; NaN (invalid) is left out.

        Raises:
            ValueError: if fewer than two distinct valid values are left.
        """
        finite = np.asarray(values, dtype=float)
        finite = finite[np.isfinite(finite)]
        distinct = np.unique(finite)
        if len(distinct) < 2:
            raise ValueError(f"expected at least two distinct valid scores to scale by; got {len(distinct)}")

        knots = np.quantile(finite, np.linspace(0, 1, levels))
        # If many rows share one value (such as the scores of untouched images), quantiles coincide: spread
        # them by a hair, so that the mapping stays strictly increasing; the least still maps to 0 and the
        # greatest to 10.
        hair = max(HAIR * (distinct[-1] - distinct[0]), np.spacing(np.abs(distinct).max()) * 4)
        for i in range(1, levels):
            knots[i] = max(knots[i], knots[i - 1] + hair)
        knots[-1] = distinct[-1]
        for i in reversed(range(levels - 1)):
            knots[i] = min(knots[i], knots[i + 1] - hair)
        return cls(tuple(map(float, knots)))

    @classmethod
    def standard(cls, values: Sequence[float] | np.ndarray) -> "RewardScale":
        """One straight line: 0 at the mean of a data set's values,
        1 for each standard deviation above (as ImageReward's).

        With `clamp=False` it extends beyond its knots.
        NaN (invalid) rows are left out.

        Raises:
            ValueError: if fewer than two distinct valid values are left.
        """
        finite = np.asarray(values, dtype=float)
        finite = finite[np.isfinite(finite)]
        if len(np.unique(finite)) < 2:
            raise ValueError(
                f"expected at least two distinct valid scores to scale by; got {len(np.unique(finite))}"
            )
        return cls((float(finite.mean()), float(finite.mean() + 10 * finite.std())))

    @classmethod
    def from_range(cls, low: float, high: float) -> "RewardScale":
        """One straight line over a scorer's declared range."""
        return cls((float(low), float(high)))

    def __call__(self, value: Float[Tensor, " b"], clamp: bool = True) -> Float[Tensor, " b"]:
        """Maps scorer values to [0, 10], or beyond if `clamp` is False; NaN stays NaN.

        Computed at least in fp32: in half precision, neighbouring knots could coincide.
        """
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        places = torch.arange(len(self.knots)) if clamp else torch.tensor(self._apart())
        knots = torch.tensor(self.knots, dtype=torch.float64)[places].to(value)
        levels = (10 * places / (len(self.knots) - 1)).to(knots)
        index = torch.bucketize(value.detach().nan_to_num(self.knots[0]), knots[1:-1])
        share = (value - knots[index]) / (knots[index + 1] - knots[index])
        return torch.lerp(levels[index], levels[index + 1], share.clamp(0, 1) if clamp else share)

    @property
    def steepness(self) -> float:
        """Ratio of the steepest to the flattest slope without clamping, at least 1."""
        places = self._apart()
        slopes = np.diff(places) / np.diff(np.array(self.knots)[places])
        return float(slopes.max() / slopes.min())

    def _apart(self) -> list[int]:
        """Indices of the first and last knots and of those clearly apart from the one before and the last."""
        gaps = np.diff(self.knots)
        least = TIED * float(np.median(gaps[gaps > 10 * HAIR * gaps.sum()]))
        last = len(self.knots) - 1
        places = [0]
        for i in range(1, last):
            if min(self.knots[i] - self.knots[places[-1]], self.knots[-1] - self.knots[i]) > least:
                places.append(i)
        return [*places, last]


@dataclass(frozen=True)
class RewardPrompt:
    """Writes a score from 0 to 10 into an instruction.

    `template` holds "{instruction}" and "{word}"; `words[i]` is used up to and including `upper[i]`. A full
    stop at the end of the instruction is dropped before the template's own, so that no ".." arises.
    """

    template: str
    words: tuple[str, ...] = ("one", "two", "three", "four", "five")
    upper: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0, 10.0)
    scale: RewardScale = field(default_factory=lambda: RewardScale.from_range(0, 10))
    embedding: bool = False  # the label is a learned embedding instead of words; see `RewardEmbedding`

    def __post_init__(self) -> None:
        fields = _fields(self.template)
        if fields != ({"instruction"} if self.embedding else {"instruction", "word"}):
            raise ValueError(
                f"template: expected {{instruction}} and {{word}} in it and no other braces; got "
                f"{self.template!r}"
            )
        if (
            not self.words
            or len(self.words) != len(self.upper)
            or list(self.upper) != sorted(set(self.upper))
            or self.upper[-1] < 10
        ):
            bounds = ", ".join(map("{:g}".format, self.upper)) or "no bound"
            raise ValueError(
                "words, upper: expected a rising upper bound for each word, the last 10; got "
                f"{len(self.words)} words and {bounds}"
            )

    @classmethod
    def adiee(cls, scale: RewardScale | None = None) -> "RewardPrompt":
        """ "… The image quality is four out of five." with five bins of two points (ADIEE Sec. 3.4)."""
        return cls(
            "{instruction}. The image quality is {word} out of five.", **({"scale": scale} if scale else {})
        )

    @classmethod
    def hive(cls, scale: RewardScale | None = None) -> "RewardPrompt":
        """ "…, image quality is four out of five" with the same bins (HIVE's inference text)."""
        return cls(
            "{instruction}, image quality is {word} out of five", **({"scale": scale} if scale else {})
        )

    @classmethod
    def learned(cls, scale: RewardScale | None = None) -> "RewardPrompt":
        """The unchanged instruction; the label goes to a `RewardEmbedding` next to the text tokens."""
        return cls("{instruction}", embedding=True, **({"scale": scale} if scale else {}))

    def label(self, score: float) -> int:
        """The bin of a score from 0 to 10, counted from 0.

        Raises:
            ValueError: if the score is outside [0, 10], or NaN: an invalid row has no label.
        """
        if not 0 <= score <= 10:
            raise ValueError(f"score: expected a number from 0 to 10; got {score}")
        return int(np.searchsorted(self.upper, score, side="left"))

    def relabel(self, instruction: str, score: float) -> str:
        """The instruction with its score (0 to 10) written in."""
        return self.write(instruction, self.label(score))

    def write(self, instruction: str, label: int) -> str:
        """The instruction with a label (0 to len(words) − 1) written in."""
        if self.embedding:
            return instruction
        text = instruction.strip()
        follows = self.template.split("{instruction}", 1)[1][:1]
        if follows in (".", ","):
            text = text.rstrip(".")
        return self.template.format(instruction=text, word=self.words[label])

    def shorten(self, instruction: str, label: int, fits: Callable[[str], bool]) -> str:
        """The instruction, cut after a word so that it fits with its label written in.

        Raises:
            ValueError: if the template alone is too long.
        """
        if not fits(self.write("", label)):
            raise ValueError(
                f"template: too long for the tokenizer without any instruction: {self.template!r}"
            )
        ends = range(len(instruction) + 1)
        end = bisect_left(ends, True, key=lambda n: not fits(self.write(instruction[:n], label))) - 1
        cut = instruction[:end]
        if instruction[end : end + 1].strip() and " " in cut.strip():
            cut = cut[: cut.rindex(" ")]
        return cut.strip()

    def best(self, instruction: str) -> str:
        """The prompt with the best score, for a reward-conditioned editor."""
        return self.relabel(instruction, 10.0)

    def save(self, folder: str | Path) -> None:
        """Writes `reward_prompt.json` into a pipeline's folder."""
        (Path(folder) / FILE).write_text(to_json(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> "RewardPrompt | None":
        """Loads the prompt of a reward-conditioned editor; None if the folder holds none.

        Raises:
            ValueError: if the file exists and cannot be read.
        """
        path = Path(folder) / FILE
        if not path.is_file():
            return None
        try:
            raw = read_settings_file(path)
            scale = RewardScale(tuple(raw.pop("scale")["knots"]))
            for name, value in raw.items():
                raw[name] = tuple(value) if isinstance(value, list) else value
            return cls(**raw, scale=scale)
        except CONTENT_ERRORS as error:
            raise ValueError(
                f"{path}: not a reward prompt ({error!r}); train or relabel again to make one"
            ) from error


def _fields(template: str) -> set[str | None]:
    """Names in a template's braces; None stands for anything else, such as an unclosed brace."""
    names: set[str | None] = set()
    try:
        for _, name, spec, conversion in string.Formatter().parse(template):
            if name is not None:
                names.add(None if spec or conversion is not None else name)
    except ValueError:
        return {None}
    return names


PRESETS = {"adiee": RewardPrompt.adiee, "hive": RewardPrompt.hive, "learned": RewardPrompt.learned}


class RewardEmbedding(nn.Module):
    """A learned vector for each label, added to every text token: the alternative to words.

    CLIP's text encoder is said to be insensitive to numbers, and the editor sees the label only through its
    prompt embeddings. All vectors start at zero, so that an editor is unchanged before training. Row `labels`
    is the vector of an unlabelled (dropped) prompt.
    """

    def __init__(self, labels: int, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(labels + 1, dim)
        nn.init.zeros_(self.vectors.weight)

    def forward(self, tokens: Float[Tensor, "b n d"], label: Tensor) -> Float[Tensor, "b n d"]:
        return tokens + self.vectors(label)[:, None].to(tokens.dtype)


def label_rows(rows: list[dict[str, Any]], prompt: RewardPrompt) -> list[dict[str, Any]]:
    """The rows with `label` (0 to len(words) − 1) and `text`; both None for invalid rows."""
    scores = [row["score"] if row["valid"] else float("nan") for row in rows]
    values = prompt.scale(torch.tensor(scores, dtype=torch.float64)).tolist()
    labelled = []
    for row, value in zip(rows, values, strict=True):
        label = prompt.label(value) if row["valid"] else None
        text = None if label is None else prompt.write(row["instruction"], label)
        labelled.append({**row, "label": label, "text": text})
    return labelled
