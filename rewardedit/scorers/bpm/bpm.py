"""BPM: parse the instruction, locate the edit, judge it (Li et al. 2025)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch, Scores
from rewardedit.files import to_json
from rewardedit.images import Preprocess, clamp_straight_through
from rewardedit.instructions.load import load_parser
from rewardedit.instructions.parsed import Parsed, ParsedEdit, Parser, Unparsed
from rewardedit.models import CLIP, resolve_model
from rewardedit.prepared import Prepared
from rewardedit.regions.base import EditRegions, Instances, Locator, edit_masks
from rewardedit.regions.boxes import filled
from rewardedit.regions.load import load_locator, locator_models, locator_options
from rewardedit.scorers.bpm import reference_code
from rewardedit.scorers.bpm.checks import JudgeConfig
from rewardedit.scorers.bpm.terms import crop, position_verdict, preserve, size_verdict
from rewardedit.scorers.clip import COINCIDE, ClipScorer, load_clip
from rewardedit.untrusted import CONTENT_ERRORS, read_settings_file

CALIBRATION = "bpm.json"  # next to the package's own detector
Compat = Literal["paper", "figure4", "code"]
COMPATS = get_args(Compat)
MISSING_OBJECT = ("invalid", "failed")
NOT_THERE = -1.0  # S_modify of a missing target object, in an edit that counts as failed
PARTS = ("modify", "preserve", "size", "position")
MEASURED_WITH = ("regions", "context", "judges")  # options that the measured values depend on
NOTHING = ParsedEdit("", None, None)  # stands for an instruction that cannot be parsed


@dataclass(frozen=True)
class Calibration:
    """Values that count as 0 and as 1 for the two parts that have no natural bounds.

    Algorithm 2 normalises by the least and the largest value of all edits scored together, so that an edit's
    score depends on its neighbours; here both ends are fixed once.
    """

    modify: tuple[float, float]
    preserve: tuple[float, float]
    origin: str  # edits that the values were measured on
    compat: Compat = "paper"  # version of the parts that were measured
    # Options of `Bpm.from_pretrained` at the measurement: regions, context, judges. They are the defaults of
    # options that are not given.
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = set(self.options) - set(MEASURED_WITH)
        if unknown:
            raise ValueError(f"options: expected some of {', '.join(MEASURED_WITH)}; got {sorted(unknown)}")
        for name in ("modify", "preserve"):
            low, high = getattr(self, name)
            if not low < high:
                raise ValueError(f"{name}: expected two rising values; got {low} and {high}")

    @classmethod
    def of(
        cls, scores: Scores, origin: str, compat: Compat = "paper", options: dict[str, Any] | None = None
    ) -> "Calibration":
        """Calibrates by BPM's scores of some edits: the 1 % and 99 % quantiles of each part.

        Raises:
            ValueError: if no edit has been scored, or all are alike.
        """
        ends = []
        for name in ("modify", "preserve"):
            values = scores.parts[name][scores.valid].float()
            if not len(values):
                raise ValueError("a calibration needs edits that can be scored; there are none")
            low, high = values.quantile(values.new_tensor([0.01, 0.99])).tolist()
            ends.append((low, high))
        return cls(ends[0], ends[1], origin, compat, options or {})

    def write(self, path: str | Path) -> None:
        """Writes a file for `read`."""
        Path(path).write_text(to_json(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> "Calibration":
        """Reads a JSON file with the fields of this class.

        Raises:
            ValueError: if there is no such file, or its fields are others.
        """
        try:
            values = read_settings_file(Path(path))
            more = {name: values[name] for name in ("compat", "options") if name in values}
            return cls(tuple(values["modify"]), tuple(values["preserve"]), str(values["origin"]), **more)
        except CONTENT_ERRORS as error:
            raise ValueError(f"{path}: expected a calibration of BPM ({error!r})") from error


# The least and the largest value of each part that the paper prints.
PAPER = Calibration((0.071, 0.642), (0.342, 0.973), "Figures 4 and 13 of the paper")
# The released code's −L2 is computed on bytes that wrap around: no distance is above √255 of 255.
CODE = Calibration(PAPER.modify, (-0.063, 0.0), "Figures 4 and 13; the range of a byte's root", "code")


@dataclass(frozen=True)
class BpmConfig:
    """Settings of BPM: the paper's values if it gives any, then the released code's, then ours."""

    compat: Compat = "paper"
    alpha: float = 0.7  # weight of the semantic part; the regions' part has the rest (Sec. 4.1)
    judges: JudgeConfig = field(default_factory=JudgeConfig)
    calibration: Calibration | None = None  # None: `PAPER`, or `CODE` with compat="code"
    context: float = 1.5  # size of an object's crop relative to its box (released code)
    # An edit whose target or reference object is not found is "invalid", without a score, as the detector may
    # be at fault; or "failed", as if the edit had not been made.
    missing_object: Literal["invalid", "failed"] = "invalid"

    def __post_init__(self) -> None:
        for name, allowed in (("compat", COMPATS), ("missing_object", MISSING_OBJECT)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}; got {getattr(self, name)!r}")
        if (self.effective_calibration.compat == "code") != (self.compat == "code"):
            raise ValueError(
                f"calibration: it was measured with compat={self.effective_calibration.compat!r}, not "
                f"{self.compat!r}"
            )
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha: expected a number from 0 to 1; got {self.alpha}")
        if self.context < 1:
            raise ValueError(f"context: expected at least 1; got {self.context}")

    @property
    def effective_calibration(self) -> Calibration:
        """The calibration in effect."""
        return self.calibration or (CODE if self.compat == "code" else PAPER)


def _calibration(path: str | None, checkpoint: str, compat: str) -> Calibration | None:
    """Reads the calibration from a file; without one, the package's for its own model."""
    if path is None and checkpoint == "shapes/detector" and compat != "code":
        path = str(Path(resolve_model(checkpoint)) / CALIBRATION)
    return None if path is None else Calibration.read(path)


class Bpm(ClipScorer):
    """Balancing Preservation and Modification, in [0, 2].

    The instruction is parsed and its objects are located in both images. Two rules judge size and position of
    the edited object; directional CLIP similarity on crops measures the requested modification; the distance
    outside the regions that may change measures preservation (Algorithms 1 and 2):

        α · (modify + preserve) + (1 − α) · (size + position)

    with modify and preserve scaled to [0, 1] by a fixed calibration. `parts` holds all four unscaled, modify
    in [−1, 1] and the others in [0, 1], and semantic and region, their two sums.
    `compat="figure4"` is the plain sum of the four, as printed in the paper's figures, in [−1, 4];
    `compat="code"` has the parts of the released code (`reference_code`), preserve in [−1, 0].

    An object that is not found makes the row invalid, with the reason. The semantic part has a gradient; the
    regions are taken as fixed.

    Args:
        parser: parses instructions.
        locator: finds the regions of the edits.
    """

    paper = "BPM (Li et al. 2025), Algorithms 1 and 2"
    family = "bpm"
    range = (0.0, 2.0)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        preprocess: Preprocess,
        parser: Parser,
        locator: Locator,
        config: BpmConfig | None = None,
    ) -> None:
        super().__init__(model, tokenizer, preprocess)
        self.parser = parser
        self.locator = locator
        self.config = config or BpmConfig()
        self.differentiable = self.config.compat != "code"  # bytes have no gradient
        if self.config.compat == "figure4":
            self.range = (-1.0, 4.0)

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str = CLIP,
        regions: str | dict[str, Any] | None = None,
        parser: str = "grammar",
        parser_cache: str | None = None,
        calibration: str | None = None,
        dtype: torch.dtype = torch.float32,
        compat: Compat = "paper",
        alpha: float = 0.7,
        context: float | None = None,
        missing_object: Literal["invalid", "failed"] = "invalid",
        judges: dict[str, float] | None = None,
        parser_options: dict[str, Any] | None = None,
    ) -> "Bpm":
        """Loads BPM with a CLIP model of `load_clip`. "shapes/detector", for drawn shapes, is the towers of a
        detector, with a calibration that names its locator as well.

        Args:
            regions: the locator of regions, a name of `load_locator`, or its options including the name:
                {"name": "grounded_sam", "detector": "IDEA-Research/grounding-dino-tiny",
                "segmenter": "facebook/sam-vit-huge"}.
            parser: the parser of instructions, a name of `load_parser`; `parser_cache`, a JSONL file, keeps
                the answers of a language model, and `parser_options` are that model's options.
            context: as in `BpmConfig`; `judges`: thresholds of `JudgeConfig` by name. None: the
                calibration's, else the defaults of these classes.
            calibration: a file for `Calibration.read`; by default the package's for its own model, else the
                values printed in the paper.

        Raises:
            ValueError: as for these functions and classes.
        """
        ends = _calibration(calibration, checkpoint, compat)
        given = {"regions": regions, "context": context, "judges": judges}
        chosen: dict[str, Any] = {"regions": None, "judges": {}, **(ends.options if ends else {})}
        chosen |= {name: value for name, value in given.items() if value is not None}
        locator = load_locator(**locator_options(chosen.pop("regions")), dtype=dtype)
        judged = JudgeConfig(**chosen.pop("judges"))
        config = BpmConfig(compat, alpha, judged, ends, missing_object=missing_object, **chosen)
        parse = load_parser(parser, parser_cache, parser_options)
        return cls(*load_clip(checkpoint, dtype), parse, locator, config)

    @classmethod
    def resolved(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with those of the locator, which a calibration may name."""
        ends = _calibration(options["calibration"], options["checkpoint"], options["compat"])
        regions = options["regions"] or (ends.options.get("regions") if ends else None)
        return {**options, "regions": locator_models(regions)}

    @torch.no_grad()
    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        parsed = list(self.parser(instruction))
        return Prepared({"parsed": parsed, "sources": self.locator.of_sources(source, parsed_edits(parsed))})

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        batch = replace(batch, source=batch.source.float(), edited=batch.edited.float())
        return self.scores_of(batch, prepared, self.locate(batch, prepared))

    def scores_of(self, batch: EditBatch, prepared: Prepared, regions: list[EditRegions]) -> Scores:
        """Scores of edits in float32 whose regions are known."""
        parsed: list[Parsed] = prepared.inputs["parsed"]
        reason = [self._reason(edit, located) for edit, located in zip(parsed, regions, strict=True)]
        # Rows without a score keep their place in the graph: a backward pass gives them zeros.
        nothing = 0 * batch.edited.flatten(1).sum(1)
        parts: dict[str, Tensor] = dict.fromkeys(PARTS, nothing + torch.nan)
        rows = [i for i, why in enumerate(reason) if why is None]
        if rows:
            judged = self._parts(
                batch.source[rows],
                batch.edited[rows],
                parsed_edits([parsed[i] for i in rows]),
                [regions[i] for i in rows],
            )
            at = (torch.tensor(rows, device=batch.edited.device),)
            parts = {name: parts[name].index_put(at, judged[name]) for name in PARTS}
        semantic, region, score = combine(parts, self.config)
        return Scores.make(score, {**parts, "semantic": semantic, "region": region}, reason)

    def locate(self, batch: EditBatch, prepared: Prepared | None = None) -> list[EditRegions]:
        """Finds the regions of each edit."""
        prepared = prepared or self.prepare(batch.source, batch.instruction)
        return self.locator.of_edits(
            batch, parsed_edits(prepared.inputs["parsed"]), prepared.inputs["sources"]
        )

    def masks(
        self,
        source: Float[Tensor, "b 3 h w"],
        edited: Float[Tensor, "b 3 h w"],
        instruction: Sequence[str],
    ) -> Float[Tensor, "b 1 h w"]:
        """Masks of the region that each edit may change, for `mask_guidance` (Sec. 3.5); 1 everywhere if that
        is unknown.
        """
        return edit_masks(self.locator, parsed_edits(self.parser(instruction)), source, edited)

    def _reason(self, parsed: Parsed, regions: EditRegions) -> str | None:
        """The reason why an edit has no score; None if it has one."""
        if isinstance(parsed, Unparsed):
            return parsed.reason
        if parsed.source is None and parsed.target is None:
            return "the instruction does not name what it changes"
        if parsed.is_unclear:
            return "the instruction refers to something that it does not name"
        if self.config.compat == "code" and regions.missing is not None:
            return None  # the released code has values for missing objects
        failed = self.config.missing_object == "failed" and regions.missing in ("target", "reference")
        return None if failed else regions.reason

    def _parts(
        self, source: Tensor, edited: Tensor, parsed: list[ParsedEdit], regions: list[EditRegions]
    ) -> dict[str, Tensor]:
        if self.config.compat == "code":
            return reference_code.parts(
                source, edited, parsed, regions, self._image_features, self.text_features, self._masks_in
            )
        image = (edited.shape[-2], edited.shape[-1])
        sizes = []
        positions = []
        for region, edit in zip(regions, parsed, strict=True):
            sizes.append(size_verdict(region, edit, self.config.judges))
            positions.append(position_verdict(region, edit, image, self.config.judges))
        return {
            "modify": self.modify(source, edited, parsed, regions),
            "preserve": preserve(source, edited, regions),
            "size": edited.new_tensor(sizes),
            "position": edited.new_tensor(positions),
        }

    def modify(
        self,
        source: Float[Tensor, "b 3 h w"],
        edited: Float[Tensor, "b 3 h w"],
        parsed: Sequence[ParsedEdit],
        regions: Sequence[EditRegions],
    ) -> Float[Tensor, " b"]:
        """S_modify (Eq. 1), in [−1, 1]: cos(I(crop of edited) − I(crop of source), T(target) − T(source)).

        A missing side is left out of the texts. If both sides have the same name (an object is moved, or made
        larger), there is no direction between them, and the edited crop's own similarity with that name is
        used instead. 0 if the crops show the same, −1 if the target object is missing.
        """
        b = len(parsed)
        objects = [*(region.source for region in regions), *(region.edited for region in regions)]
        before, after = self.crop_features([*source, *edited], objects).split(b)
        names = [*(edit.source for edit in parsed), *(edit.target for edit in parsed)]
        old, new = self.name_features(names).split(b)
        same = torch.tensor([edit.source == edit.target for edit in parsed], device=after.device)[:, None]
        change = torch.where(same, after, after - before)
        direction = torch.where(same, new, new - old)

        square = change.square().sum(1)
        nothing = square < (COINCIDE * before.norm(dim=1)) ** 2
        length = torch.where(nothing, torch.ones_like(square), square).sqrt() * direction.norm(dim=1)
        similarity = (change * direction).sum(1) / length.clamp_min(1e-9)
        similarity = torch.where(nothing, torch.zeros_like(similarity), similarity).clamp(-1, 1)
        missing = torch.tensor([r.missing == "target" for r in regions], device=after.device)
        return torch.where(missing, torch.full_like(similarity, NOT_THERE), similarity)

    def crop_features(self, images: list[Tensor], objects: list[Instances]) -> Tensor:
        """CLIP's features of crops around the objects, in one batch; of the whole image if there is no
        object.
        """
        whole = (0.0, 0.0, float(images[0].shape[-1]), float(images[0].shape[-2]))
        crops = []
        for image, instances in zip(images, objects, strict=True):
            box = instances.box.tolist() if len(instances) else whole
            crops.append(crop(image, box, self.config.context))
        return self._image_features(crops)

    def _image_features(self, images: list[Tensor]) -> Tensor:
        """CLIP's features of images (3, h, w) of any sizes, in one batch."""
        pixels = torch.cat([self.preprocess(image[None]) for image in images])
        return self.model.get_image_features(pixel_values=pixels.to(self.model.dtype)).pooler_output.float()

    def _masks_in(self, images: Tensor, boxes: Sequence[Tensor]) -> list[Tensor]:
        """Masks of the objects in boxes; the boxes themselves without a segmenter."""
        segmenter = getattr(getattr(self.locator, "finder", None), "segmenter", None)
        if segmenter is not None:
            return segmenter(images, boxes)
        return [filled(of_image, (images.shape[-2], images.shape[-1])) for of_image in boxes]

    def name_features(self, names: list[str | None]) -> Tensor:
        """CLIP's features of names; zeros for None."""
        features = self.text_features([name or "" for name in names])
        named = torch.tensor([name is not None for name in names], device=features.device)
        return features * named[:, None]


def combine(parts: dict[str, Tensor], config: BpmConfig) -> tuple[Tensor, Tensor, Tensor]:
    """The semantic part, the regions' part, and the score (Alg. 1, lines 10 to 12)."""
    modify = parts["modify"]
    kept = parts["preserve"]
    region = parts["size"] + parts["position"]
    if config.compat == "figure4":
        return modify + kept, region, modify + kept + region
    ends = config.effective_calibration
    semantic = _scaled(modify, *ends.modify) + _scaled(kept, *ends.preserve)
    return semantic, region, config.alpha * semantic + (1 - config.alpha) * region


def _scaled(values: Tensor, low: float, high: float) -> Tensor:
    """The values with `low` at 0 and `high` at 1."""
    return clamp_straight_through((values - low) / (high - low))


def parsed_edits(parsed: Sequence[Parsed]) -> list[ParsedEdit]:
    """The parsed edits, with an empty edit for each instruction that could not be parsed."""
    return [NOTHING if isinstance(edit, Unparsed) else edit for edit in parsed]
