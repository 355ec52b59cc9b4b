"""Tables of attacks: thresholds, rises of scores, failed edits that pass, and transfers of gradient steps."""

from collections.abc import Mapping, Sequence

import numpy as np

from rewardedit.evaluation.protocols.protocol import Cell, Column, Line, Table
from rewardedit.evaluation.robustness.figures import Baseline, Effect, measure_baseline, measure_effect
from rewardedit.evaluation.robustness.measure import AttackScores, RobustnessConfig, stepped_name
from rewardedit.evaluation.robustness.rows import UNCHANGED, JudgedEdits
from rewardedit.evaluation.statistics import Comparison, clustered_mean

# titles of the tables of shares
PASSING = "Failed edits that pass for good ones"
BEFORE = "The same edits before the attack"
CHANGE = "Change of the share that passes"
IMPROVED = 0.5  # an attacked edit that the exact rating puts this much higher is left out

Effects = dict[str, dict[str, Effect | None]]  # by attack and scorer; None if too few edits are left


def make_tables(scores: AttackScores, edits: JudgedEdits, config: RobustnessConfig) -> list[Table]:
    """All tables of a measurement."""
    baselines = measure_baselines(scores, edits, config)
    effects = measure_effects(scores, edits, baselines)
    self_effects = {}
    for name in baselines:
        for bound in config.bounds:
            attack = stepped_name(name, bound)
            if attack in effects:
                self_effects[name, bound] = effects[attack][name]

    tables = [
        baseline_table(baselines, config),
        rise_table(baselines, effects, self_effects, config),
        *passing_tables(baselines, effects, self_effects, config),
    ]
    for bound in config.bounds if scores.stepped else ():
        tables.append(transfer_table(list(scores.stepped), list(baselines), effects, bound))
    if scores.ratings:
        tables.append(rating_table(scores, edits))
    return tables


def measure_baselines(
    scores: AttackScores, edits: JudgedEdits, config: RobustnessConfig
) -> dict[str, Baseline]:
    """Each scorer's figures before attacks."""
    of_good = [edits.sources[number] for number in edits.good]
    of_failed = [edits.sources[number] for number in edits.failed]
    baselines = {}
    for name, good in scores.good.items():
        failed = scores.failed[UNCHANGED][name]
        if not np.isfinite(good).any():
            raise ValueError(
                f"scorer {name}: gives no good edit a score; leave it out, or see its reasons in out"
            )
        baselines[name] = measure_baseline(good, failed, of_good, of_failed, config.good_share)
    return baselines


def measure_effects(scores: AttackScores, edits: JudgedEdits, baselines: Mapping[str, Baseline]) -> Effects:
    """The effect of each attack on each scorer, over the failed edits that it did not make better."""
    every = np.arange(len(edits.failed))
    attacked = {}
    for name, changed in scores.failed.items():
        if name != UNCHANGED:
            attacked[name] = (changed, every)
    for maker, by_bound in scores.stepped.items():
        for bound, changed in by_bound.items():
            attacked[stepped_name(maker, bound)] = (changed, scores.chosen)

    sources = np.array([edits.sources[number] for number in edits.failed], dtype=object)
    effects: Effects = {}
    for attack, (by_scorer, places) in attacked.items():
        effects[attack] = {}
        kept = not_improved(scores, attack)
        counted = places[kept]
        for name, after in by_scorer.items():
            if len(set(sources[counted])) < 2:
                effects[attack][name] = None
                continue
            before = scores.failed[UNCHANGED][name][counted]
            effects[attack][name] = measure_effect(before, after[kept], sources[counted], baselines[name])
    return effects


def not_improved(scores: AttackScores, attack: str) -> np.ndarray | slice:
    """True (n,) for the attacked edits that are no better than before; all without exact ratings."""
    if not scores.ratings:
        return slice(None)
    before, after = ratings_of(scores, attack)
    return ~(after - before > IMPROVED)


def ratings_of(scores: AttackScores, attack: str) -> tuple[np.ndarray, np.ndarray]:
    """Exact ratings (n,) of the edits that an attack was tried on, before and after."""
    before = scores.ratings[UNCHANGED]
    return (before if attack in scores.failed else before[scores.chosen]), scores.ratings[attack]


def baseline_table(baselines: Mapping[str, Baseline], config: RobustnessConfig) -> Table:
    """Thresholds of the scorers, and what they are chosen from."""
    rows = []
    for name, one in baselines.items():
        cells = {
            "threshold": Cell(one.threshold),
            "median": Cell(one.median),
            "spread": Cell(one.spread),
            "good that pass": Cell.of(one.good),
            "failed that pass": Cell.of(one.failed),
            "not scored": Cell(one.not_scored),
        }
        rows.append(Line(name, cells))
    columns = [Column("threshold"), Column("median"), Column("spread")]
    columns += [Column(name, True, 1) for name in ("good that pass", "failed that pass", "not scored")]
    note = (
        f"An edit passes if its score reaches the threshold, the highest that {100 * config.good_share:g} % "
        "of the good edits with a score reach. Median and spread (standard deviation) are of good and failed "
        "edits together."
    )
    return Table("Before attacks", columns, rows, [note])


def rise_table(
    baselines: Mapping[str, Baseline],
    effects: Effects,
    self_effects: Mapping[tuple[str, int], Effect | None],
    config: RobustnessConfig,
) -> Table:
    """Rises of the scores of failed edits."""
    columns = [Column(name, digits=2) for name in _columns(config)]
    rows = []
    for name in baselines:
        cells = {}
        for column, effect in _effects_of(name, effects, self_effects, config).items():
            cells[column] = _cell(effect and effect.rise)
        rows.append(Line(name, cells))
    note = (
        "Mean rise of the scores of failed edits that an attack made no better, in spreads of the scorer. "
        "Gradient steps are made for the scorer in the row."
    )
    return Table("Rise of the score", columns, rows, [note])


def passing_tables(
    baselines: Mapping[str, Baseline],
    effects: Effects,
    self_effects: Mapping[tuple[str, int], Effect | None],
    config: RobustnessConfig,
) -> list[Table]:
    """Failed edits that pass for good ones: after each attack, before it, and the change."""
    rows: dict[str, list[Line]] = {PASSING: [], BEFORE: [], CHANGE: []}
    for name in baselines:
        cells: dict[str, dict[str, Cell]] = {title: {} for title in rows}
        for column, effect in _effects_of(name, effects, self_effects, config).items():
            passed = effect and effect.passed
            cells[PASSING][column] = Cell() if passed is None else Cell(passed.mean_a, n=passed.n)
            cells[BEFORE][column] = Cell() if passed is None else Cell(passed.mean_b, n=passed.n)
            cells[CHANGE][column] = _cell(passed)
        for title, lines in rows.items():
            lines.append(Line(name, cells[title]))

    notes = {
        PASSING: "Share of the attacked failed edits whose score reaches the threshold, after the attack. "
        f"Left out of its column: edits whose exact rating, if any, rose by more than {IMPROVED:g}.",
        BEFORE: f'The share before, of the edits that "{PASSING}" counts in the same column.',
        CHANGE: "Share after, less that before, of the same edits.",
    }
    columns = [Column(name, True, 1) for name in _columns(config)]
    return [Table(title, columns, lines, [notes[title]]) for title, lines in rows.items()]


def transfer_table(makers: Sequence[str], names: Sequence[str], effects: Effects, bound: int) -> Table:
    """Failed edits that pass more by each scorer, after gradient steps for another."""
    rows = []
    for maker in makers:
        of_maker = effects[stepped_name(maker, bound)]
        cells = {}
        for name in names:
            effect = of_maker[name]
            cells[name] = _cell(effect and effect.passed)
        rows.append(Line(maker, cells))
    columns = [Column(name, True, 1) for name in names]
    note = (
        "Rows: the scorer that the gradient steps were made for; columns: the scorer that judges. Share of "
        "failed edits that pass after, less the share before."
    )
    return Table(f"Transfer of gradient steps within {bound}/255", columns, rows, [note])


def rating_table(scores: AttackScores, edits: JudgedEdits) -> Table:
    """Exact ratings of failed edits before and after attacks: what the attacks really changed."""
    sources = np.array([edits.sources[number] for number in edits.failed], dtype=object)
    rows = []
    for attack in scores.ratings:
        if attack == UNCHANGED:
            continue
        before, after = ratings_of(scores, attack)
        images = sources if attack in scores.failed else sources[scores.chosen]
        drop = clustered_mean(after - before, images)
        cells = {
            "before": Cell(float(before.mean()), n=len(before)),
            "change": Cell.of(drop),
            "left out": Cell(float((after - before > IMPROVED).mean())),
        }
        rows.append(Line(attack, cells))
    columns = [Column("before", digits=2), Column("change", digits=2), Column("left out", True, 1)]
    note = (
        "Mean exact rating of failed edits, 0 to 10. Left out of the other tables: edits whose rating rose "
        f"by more than {IMPROVED:g}."
    )
    return Table("Exact ratings", columns, rows, [note])


def _columns(config: RobustnessConfig) -> list[str]:
    """Names of the attacks' columns."""
    return [*config.attacks, *(f"steps {bound}/255" for bound in config.bounds)]


def _effects_of(
    name: str,
    effects: Effects,
    self_effects: Mapping[tuple[str, int], Effect | None],
    config: RobustnessConfig,
) -> dict[str, Effect | None]:
    """A scorer's effects by the columns' names."""
    by_attack = {attack: effects[attack][name] for attack in config.attacks}
    for bound in config.bounds:
        if (name, bound) in self_effects:
            by_attack[f"steps {bound}/255"] = self_effects[name, bound]
    return by_attack


def _cell(effect: Comparison | None) -> Cell:
    """A difference with its interval."""
    if effect is None:
        return Cell(reason="undefined: fewer than two source images, or equal scores")
    return Cell(effect.difference, effect.ci95, effect.n)
