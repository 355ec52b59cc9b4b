"""Settings of `rewardedit bench shapes`: its scorers, editors and sizes."""

from dataclasses import dataclass, field

from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.evaluation.robustness.measure import RobustnessConfig
from rewardedit.scorer_spec import ScorerSpec, as_mapping, full_name

AGAINST_SOURCE = {"against": "source"}
# Scorers of the world that see source, edited image and instruction alone.
SCORERS: tuple[ScorerSpec, ...] = (
    {"adiee": {"checkpoint": "shapes/adiee"}},
    {"bpm": {"checkpoint": "shapes/detector"}},
    {"bpm": {"checkpoint": "shapes/detector", "missing_object": "failed"}},
    {"vifi_clip": {"checkpoint": "shapes/vifi-clip"}},
    {"clip_d": {"checkpoint": "shapes/clip"}},
    {"clip_t": {"checkpoint": "shapes/clip"}},
    {"clip_i": {"checkpoint": "shapes/clip", **AGAINST_SOURCE}},
    {"l1": AGAINST_SOURCE},
    {"l2": AGAINST_SOURCE},
    {"psnr": AGAINST_SOURCE},
    {"ssim": AGAINST_SOURCE},
)
COMBINATIONS = (("adiee", "bpm(missing_object=failed)"), ("adiee", "vifi_clip"))

EDITOR = "editor, 10 steps"  # the packaged editor at the settings that are best for it
SAMPLED = {
    EDITOR: SamplingConfig(10, 1.75, 1.2),
    "editor, 2 steps": SamplingConfig(2, 1.25, 1.0),
    "editor, no guidance": SamplingConfig(10, 1.0, 1.0),
    "editor, guidance 4": SamplingConfig(10, 4.0, 1.0),
}
COPY = "copy of the source"
# kinds of `corruptions.CORRUPTION_KINDS`, drawn by the world
DRAWN = {
    "drawn: over done": "over_done",
    "drawn: half done": "half_done",
    "drawn: wrong object": "wrong_object",
}
EDITORS = (*SAMPLED, *DRAWN, COPY)


def short_name(spec: ScorerSpec) -> str:
    """A scorer's name with its options, but for those that all scorers of the world share."""
    terms = {}
    for name, options in as_mapping(spec).items():
        terms[name] = {key: value for key, value in options.items() if key not in ("checkpoint", "against")}
    return full_name(terms)


@dataclass(frozen=True)
class ShapesBench:
    """Sizes of the comparison; the defaults take about an hour on two cores."""

    scorers: tuple[ScorerSpec, ...] = SCORERS  # by name, with the world's models
    n: int = 105  # source images of the test split
    editors: tuple[str, ...] = EDITORS  # names from `EDITORS`
    seeds: int = 3  # edits of each source by the packaged editor at its best, compared in pairs
    # least difference of the exact ratings, 0 to 10, of two edits that are compared
    least: float = 1.0
    candidates: int = 8  # instructions among which an edit's own is looked for
    good_from: float = 8.0  # least exact rating of a good edit
    failed_up_to: float = 2.0  # highest exact rating of a failed edit
    judged: int = 64  # good edits, and failed edits, that the attacks are tried on
    attack: RobustnessConfig = field(
        default_factory=lambda: RobustnessConfig(stepped=32, combinations=COMBINATIONS)
    )
    timed: int | None = 64  # edits whose scoring is timed; None: nothing is timed

    def __post_init__(self) -> None:
        names = list(map(short_name, self.scorers))
        if len(set(names)) < len(names):
            raise ValueError(f"scorers: expected each once; got {', '.join(names)}")
        unknown = set(self.editors) - set(EDITORS)
        if unknown or EDITOR not in self.editors:
            raise ValueError(
                f"editors: expected some of {'; '.join(EDITORS)}, among them {EDITOR!r}; got "
                f"{'; '.join(self.editors)}"
            )
        if self.n <= self.candidates or self.candidates < 2 or self.seeds < 2:
            raise ValueError(
                "n, candidates, seeds: expected at least two candidates and seeds, and more sources than "
                f"candidates; got {self.n}, {self.candidates}, {self.seeds}"
            )
