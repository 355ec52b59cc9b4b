"""Attacks on good and failed edits, scored by the scoring engine; nothing that is there is made again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Subset

from rewardedit import devices
from rewardedit.data import Rows
from rewardedit.data.datasets import row_shards
from rewardedit.data.reading import read_batches
from rewardedit.evaluation.bench import read_item_scores, score_items
from rewardedit.evaluation.protocols.protocol import ItemScores
from rewardedit.evaluation.robustness.attacks import ATTACKS
from rewardedit.evaluation.robustness.figures import lowest
from rewardedit.evaluation.robustness.pixel_steps import ascend_pixels
from rewardedit.evaluation.robustness.rows import (
    UNCHANGED,
    AttackedRows,
    JudgedEdits,
    SteppedRows,
    spread,
    stepped_key,
)
from rewardedit.evaluation.scorer_use import ScorerUse
from rewardedit.files import AnyPath, write_json
from rewardedit.images import to_bytes
from rewardedit.scorers import Scorer
from rewardedit.scorers.lower_of import LowerOf
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import stage
from rewardedit.untrusted import file_name, read_json_file

SHARD = 32  # failed edits in a file of stepped images
GRADIENT = "gradient"  # in such a file's metadata: whether the scorer has one


@dataclass(frozen=True)
class RobustnessConfig:
    """Attacks, and the rule by which a failed edit passes for a good one."""

    attacks: tuple[str, ...] = tuple(ATTACKS)  # changes of the image that no scorer has a part in
    bounds: tuple[int, ...] = (2, 8)  # largest changes of a pixel by gradient steps, of 255; empty: no steps
    steps: int = 20  # gradient steps
    # failed edits, of as many sources as there are, that are attacked by gradient steps; None: all
    stepped: int | None = 64
    good_share: float = 0.9  # share of good edits that reach the threshold
    # scorers by name, of which the lowest, each over its own median, is tested too, e.g. [[bpm, clip_d]]
    combinations: tuple[tuple[str, ...], ...] = ()
    batch_size: int = 32  # images of one size that are attacked at once

    def __post_init__(self) -> None:
        unknown = set(self.attacks) - set(ATTACKS)
        if unknown:
            raise ValueError(
                f"attacks: expected some of {', '.join(ATTACKS)}; got {', '.join(sorted(unknown))}"
            )
        if not 0 < self.good_share <= 1:
            raise ValueError(f"good_share: expected above 0 and at most 1; got {self.good_share}")
        for name in ("steps", "stepped", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1; got {value}")
        if not all(0 < bound <= 255 for bound in self.bounds):
            raise ValueError(f"bounds: expected 1 to 255 levels; got {list(self.bounds)}")
        if not all(len(set(names)) >= 2 for names in self.combinations):
            raise ValueError("combinations: expected two scorers or more in each")


@dataclass(frozen=True)
class AttackScores:
    """Scores of attacked edits; NaN without one."""

    good: dict[str, np.ndarray]  # scores of good edits that were not attacked, by scorer
    failed: dict[str, dict[str, np.ndarray]]  # scores of all failed edits, by attack and scorer
    # scores of some failed edits after gradient steps, by the scorer they were made for, bound and scorer
    stepped: dict[str, dict[int, dict[str, np.ndarray]]]
    chosen: np.ndarray  # positions of these among the failed edits
    centres: dict[str, tuple[float, float]]  # median and spread of the scorers in combinations
    ratings: dict[str, np.ndarray]  # exact ratings of failed edits by attack or `stepped_name`; {} without


def score_attacks(
    out: AnyPath,
    edits: JudgedEdits,
    scorers: Mapping[str, ScorerUse],
    config: RobustnessConfig,
    made_of: Any,
    size: int | None = None,
    policy: str = "crop",
) -> AttackScores:
    """Scores all edits before and after all attacks into the folder `out`, which an interrupted call goes on
    with.

    Args:
        made_of: what the edits depend on.
        size: as in `rewardedit.scoring.score_rows`.
        policy: as in `rewardedit.scoring.score_rows`.

    Raises:
        ValueError: if a combination names a scorer that is not there, or the folder was made with other
            settings.
    """
    settings = {"edits": made_of, "size": size, "policy": policy}
    run = Run(out, edits, scorers, config, settings, size, policy)
    run.require_members()
    good, failed, ratings = run.score_plain()
    centres = run.centres(good, failed[UNCHANGED])
    for by_scorer in (good, *failed.values()):
        _add_combinations(by_scorer, config, centres)

    stepped: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for maker in run.makers(centres):
        files = run.make_steps(maker)
        if files is None:
            continue
        stepped[maker.name], of_maker = run.score_steps(maker, files)
        ratings |= of_maker
        for by_scorer in stepped[maker.name].values():
            _add_combinations(by_scorer, config, centres)
    chosen = np.searchsorted(edits.failed, run.first)
    return AttackScores(good, failed, stepped, chosen, centres, ratings)


@dataclass(frozen=True)
class Run:
    """A measurement in a folder."""

    out: AnyPath
    edits: JudgedEdits
    scorers: Mapping[str, ScorerUse]
    config: RobustnessConfig
    settings: dict[str, Any]  # everything that the edits depend on
    size: int | None
    policy: str

    @property
    def first(self) -> list[int]:
        """Numbers of the failed edits that are attacked by gradient steps."""
        return spread(self.edits.failed, self.edits.sources, self.config.stepped)

    def require_members(self) -> None:
        """Raises ValueError if a combination names a scorer that is not there."""
        for name in set(chain.from_iterable(self.config.combinations)) - set(self.scorers):
            raise ValueError(f"combinations: expected some of {', '.join(self.scorers)}; got {name}")

    def score_plain(
        self,
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
        """Scores of good edits, and of failed edits by attack; exact ratings of failed edits by attack."""
        attacks = [UNCHANGED, *self.config.attacks]
        of_good = list(product(self.edits.good, [UNCHANGED]))
        of_failed = list(product(self.edits.failed, attacks))
        settings = {**self.settings, "good": self.edits.good, "failed": self.edits.failed, "attacks": attacks}
        rows = AttackedRows(self.edits.rows, [*of_good, *of_failed], self.size, self.policy)
        scores = self._score(self.out / "attacked", rows, settings)

        good = {name: scores.array(name, _ids(of_good)) for name in self.scorers}
        failed = {}
        for attack in attacks:
            ids = _ids(product(self.edits.failed, [attack]))
            failed[attack] = {name: scores.array(name, ids) for name in self.scorers}

        only_failed = AttackedRows(self.edits.rows, of_failed, self.size, self.policy)
        rated = self._rate(self.out / "attacked", only_failed, settings)
        ratings = {}
        for attack in attacks if rated else ():
            ids = _ids(product(self.edits.failed, [attack]))
            ratings[attack] = np.array([rated[name] for name in ids])
        return good, failed, ratings

    def centres(
        self, good: Mapping[str, np.ndarray], failed: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[float, float]]:
        """Median and spread of each scorer in a combination, over all edits before attacks."""
        centres = {}
        for name in dict.fromkeys(chain.from_iterable(self.config.combinations)):
            known = np.concatenate([good[name], failed[name]])
            known = known[np.isfinite(known)]
            centres[name] = (float(np.median(known)), float(known.std(ddof=1)))
        return centres

    def makers(self, centres: Mapping[str, tuple[float, float]]) -> list[ScorerUse]:
        """The scorers that gradient steps are made for: each, and each combination."""
        if not self.config.bounds:
            return []
        makers = list(self.scorers.values())
        for names in self.config.combinations:
            members = {name: self.scorers[name] for name in names}
            theirs = {name: centres[name] for name in names}
            made_of = {"centres": theirs, "members": {name: use.made_of for name, use in members.items()}}
            load = Lazy(partial(_load_combination, members, theirs))
            makers.append(ScorerUse(combination_name(names), made_of, load))
        return makers

    def make_steps(self, maker: ScorerUse) -> dict[int, Path] | None:
        """The file of each row's images after gradient steps for a scorer, by the row's number; None if the
        scorer has no gradient.
        """
        parts = [self.first[i : i + SHARD] for i in range(0, len(self.first), SHARD)]

        def make(number: int, path: Path) -> None:
            scorer = maker.load()
            images = {}
            for bound in self.config.bounds if scorer.differentiable else ():
                for row, image in self._ascend(scorer, parts[number], bound):
                    images[stepped_key(row, str(bound))] = to_bytes(image.cpu()).contiguous()
            save_file(images, path, {GRADIENT: str(scorer.differentiable)})

        folder = self.out / "steps" / file_name(maker.name) / "images"
        paths = stage(folder, self._step_settings(maker), make, len(parts), "images-{:05d}.safetensors")
        with safe_open(paths[0], "pt") as file:
            if file.metadata()[GRADIENT] != str(True):
                return None
        files = {}
        for numbers, path in zip(parts, paths, strict=True):
            files |= dict.fromkeys(numbers, path)
        return files

    def score_steps(
        self, maker: ScorerUse, files: Mapping[int, Path]
    ) -> tuple[dict[int, dict[str, np.ndarray]], dict[str, np.ndarray]]:
        """Scores of the images of `make_steps` by bound and scorer, and their exact ratings by
        `stepped_name`.
        """
        items = list(product(self.first, map(str, self.config.bounds)))
        rows = SteppedRows(self.edits.rows, items, files, self.size, self.policy)
        folder = self.out / "steps" / file_name(maker.name)
        scores = self._score(folder, rows, self._step_settings(maker))
        rated = self._rate(folder, rows, self._step_settings(maker))
        steps = {}
        ratings = {}
        for bound in self.config.bounds:
            ids = _ids(product(self.first, [str(bound)]))
            steps[bound] = {name: scores.array(name, ids) for name in self.scorers}
            if rated:
                ratings[stepped_name(maker.name, bound)] = np.array([rated[name] for name in ids])
        return steps, ratings

    def _step_settings(self, maker: ScorerUse) -> dict[str, Any]:
        settings = {"failed": self.first, "bounds": self.config.bounds, "steps": self.config.steps}
        return {**self.settings, **settings, "batch_size": self.config.batch_size, "maker": maker.made_of}

    def _ascend(self, scorer: Scorer, numbers: Sequence[int], bound: int) -> Iterator[tuple[int, Tensor]]:
        """Numbers of rows that can be read, and their images after gradient steps."""
        rows = Subset(self.edits.rows, numbers)
        for chunk in read_batches(rows, self.size, self.policy, self.config.batch_size):
            if chunk.pixels is None:
                continue
            batch = chunk.pixels.to(devices.default_device())
            images = ascend_pixels(scorer, batch, bound, self.config.steps)
            for position, image in zip(chunk.numbers, images, strict=True):
                yield numbers[position], image

    def _score(self, folder: AnyPath, rows: Rows, settings: dict[str, Any]) -> ItemScores:
        """Scores of rows by each scorer alone, each in a folder of its own."""
        shards = {}
        for name, use in self.scorers.items():
            made_of = {**settings, "use": use.made_of}
            shards[name] = score_items(folder, name, made_of, rows, use.by_name, self.size)
        return read_item_scores(shards)

    def _rate(self, folder: AnyPath, rows: AttackedRows, settings: dict[str, Any]) -> dict[str, float]:
        """Exact ratings by the rows' ids, NaN for a row that cannot be read; {} without an exact rating."""
        rate = self.edits.rate
        if rate is None:
            return {}
        parts = row_shards(rows, batch=4)

        def make(number: int, path: Path) -> None:
            ratings = {}
            for i in parts[number].indices:
                image = rows[i].edited
                assert isinstance(image, Tensor)  # as `read_row` gives it
                ratings[rows.id_of(i)] = float(rate([rows.items[i][0]], image[None])[0])
            write_json(path, ratings)

        paths = stage(folder / "ratings", settings, make, len(parts), "ratings-{:05d}.json")
        return dict(chain.from_iterable(read_json_file(path).items() for path in paths))


def _ids(items: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{number} {attack}" for number, attack in items]


def _load_combination(members: Mapping[str, ScorerUse], centres: Mapping[str, tuple[float, float]]) -> Scorer:
    return LowerOf({name: use.load() for name, use in members.items()}, centres)


def stepped_name(scorer: str, bound: int) -> str:
    """Name of the gradient steps for a scorer in results."""
    return f"{scorer}, {bound}/255"


def combination_name(names: Sequence[str]) -> str:
    """Name of a combination in results."""
    return f"lower_of({', '.join(names)})"


def _add_combinations(
    by_scorer: dict[str, np.ndarray], config: RobustnessConfig, centres: Mapping[str, tuple[float, float]]
) -> None:
    for names in config.combinations:
        members = [by_scorer[name] for name in names]
        by_scorer[combination_name(names)] = lowest(members, [centres[name] for name in names])
