"""Audits a labelled data set of the shapes world; nothing is trained:
python rewardedit/shapes/benchmarks/adiee_data.py [RUN]

RUN is a part of the run of `rewardedit train shapes/adiee-data`: runs/shapes-adiee-data/edited (the default),
or its damaged, compared or moved. The oracle, which is independent of the labels, rates the
edits: by rule, method and kind of damage, its mean and the share of rows whose label is within 2.5 of it;
over turns, and over damaged targets or outputs that are compared with targets, the rank correlation of labels
with its ratings.

If thresholds label methods' outputs, intervals show whether labels of 5 rate above labels of 0 among them,
and labels of 10 above labels of 5, compared with the same for labels shuffled within a method. A probe that
sees only high frequencies measures how much of the label an autoencoder's traces give away: with the random
half of images that passed through it, and for the rows whose images did not.
"""

import io
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import read_command_line
from scipy.optimize import minimize

from rewardedit.config import build, load_yaml
from rewardedit.data import DataConfig
from rewardedit.data.sequences import SequencesConfig
from rewardedit.data.worlds import WorldConfig
from rewardedit.evaluation.statistics import difference_of_groups, spearman
from rewardedit.images import gaussian_blur, load_image
from rewardedit.shapes import EDIT_TYPES, Shapes, ShapesBatch, ShapesOracle, sequence
from rewardedit.shapes.sequences import turns_of
from rewardedit.shapes.world import BLOCK
from rewardedit.synthesis.label_rules import ANOTHER_INSTRUCTION, ANOTHER_TURN, DAMAGED, OWN_LABELS, UNREACHED
from rewardedit.synthesis.outputs import read_parquet

NEAR = 2.5  # largest difference at which a label agrees with the oracle
NOT_RATED = ("another_instruction", "another_object", "another_word", ANOTHER_INSTRUCTION, ANOTHER_TURN)
OWN = (*OWN_LABELS, DAMAGED)
COLUMNS = (
    "id",
    "edited",
    "label",
    "rule",
    "method",
    "source_id",
    "sequence_id",
    "vae_roundtrip",
    "instruction",
)


def rows_of(run: Path) -> Iterator[dict[str, Any]]:
    for shard in sorted((run / "rows").glob("train-*.parquet")):
        yield from read_parquet(shard, 256, COLUMNS)


def image_of(row: dict[str, Any]) -> torch.Tensor:
    return load_image(io.BytesIO(row["edited"]))


def rate_rows(rows: list[dict[str, Any]], config: dict[str, Any]) -> np.ndarray:
    """The oracle's rating of each row; NaN without a known truth (another row's or turn's instruction). Rows
    of single edits get their `edit_type`.
    """
    rating = np.full(len(rows), np.nan)
    by_block: dict[int, list[int]] = defaultdict(list)
    by_sequence: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        if row["rule"] in NOT_RATED:
            continue
        if row["sequence_id"] is not None:
            by_sequence[int(row["sequence_id"].rsplit("-", 1)[1])].append(i)
        else:
            by_block[int(row["source_id"].rsplit("-", 1)[1]) // BLOCK].append(i)
    data = build(DataConfig, next(iter(config["data"].values())))
    settings = data.shapes or WorldConfig()
    world = Shapes(data.split, settings.seed, settings.backdrops, data.edit_types or EDIT_TYPES)
    for block, members in by_block.items():
        samples = world.batch(block * BLOCK, BLOCK)
        numbers = [int(rows[i]["source_id"].rsplit("-", 1)[1]) - block * BLOCK for i in members]
        for i, number in zip(members, numbers, strict=True):
            rows[i]["edit_type"] = samples.edit_type[number]
        rating[members] = rate_samples(samples, numbers, [image_of(rows[i]) for i in members])
    sequences = build(SequencesConfig, next(iter(config["sequences"].values()), {"name": "shapes"}))
    joined = sequences.shapes or WorldConfig()
    for number, members in by_sequence.items():
        backdrop = joined.backdrops[number % len(joined.backdrops)]
        whole = sequence(
            Shapes(sequences.split, joined.seed, (backdrop,)),
            number,
            turns_of(number, len(joined.backdrops)),
        )
        parts = []
        for i in members:
            first, last, _ = map(int, rows[i]["id"].rsplit("/", 1)[1].split("-"))
            parts.append(type(whole)(whole.turns[first:last]))
        images = torch.stack([image_of(rows[i]) for i in members])
        rating[members] = ShapesOracle().rate_sequences(parts, images).score.numpy()
    return rating


def rate_samples(samples: ShapesBatch, numbers: list[int], images: list[torch.Tensor]) -> np.ndarray:
    """Ratings of images as edits of these samples of a block."""
    rated = np.empty(len(numbers))
    at = np.array(numbers)
    # A sample has many edits: each time one edit of every sample is rated.
    order = np.array([numbers[:i].count(value) for i, value in enumerate(numbers)])
    for turn in range(order.max() + 1):
        members = np.flatnonzero(order == turn)
        edited = samples.source.clone()
        edited[at[members]] = torch.stack([images[i] for i in members])
        rated[members] = ShapesOracle().rate(samples, edited).score.numpy()[at[members]]
    return rated


def by_rule_and_method(rows: list[dict[str, Any]], rating: np.ndarray) -> dict[str, dict[str, float | None]]:
    """Number of rows, the oracle's mean and the share that agrees: for each rule, for each rule and method,
    and for outputs that are compared with targets, by type of edit.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[row["rule"]].append(i)
        if row["method"] and row["rule"] not in OWN_LABELS:
            groups[f"{row['rule']}, {row['method']}"].append(i)
        if row["rule"] == UNREACHED:
            groups[f"{row['rule']}, {row['edit_type']}"].append(i)
    labels = np.array([row["label"] for row in rows])
    out: dict[str, dict[str, float | None]] = {}
    for name, members in sorted(groups.items()):
        known = [i for i in members if np.isfinite(rating[i])]
        near = np.abs(rating[known] - labels[known]) <= NEAR
        out[name] = {
            "n": len(members),
            "oracle_mean": float(rating[known].mean()) if known else None,
            "agree": float(near.mean()) if known else None,
        }
    return out


def shuffled(rows: list[dict[str, Any]], seed: int = 0) -> np.ndarray:
    """The labels, shuffled among the rows of each method, of sequences, and of each of the other rules."""
    rng = np.random.default_rng(seed)
    groups: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[_made_by(row)].append(i)
    labels = np.array([row["label"] for row in rows])
    for members in groups.values():
        labels[members] = rng.permutation(labels[members])
    return labels


def _made_by(row: dict[str, Any]) -> str:
    if row["sequence_id"] is not None:
        return "sequences"
    return row["rule"] if row["rule"] in OWN else row["method"]


def intervals(
    rows: list[dict[str, Any]], rating: np.ndarray, labels: np.ndarray, strong: set[str]
) -> dict[str, list[float]]:
    """Intervals of the difference in rating between labels of 5 and 0 among methods' outputs, and between
    labels of 10, on targets and turns, and labels of 5 of strong methods.
    """
    made_by = np.array([_made_by(row) for row in rows])
    sources = np.array([row["source_id"] for row in rows])
    output = ~np.isin(made_by, [*OWN, "sequences"])
    known = np.isfinite(rating)
    low = output & known & np.isin(labels, [0, 5])
    top = known & (
        (np.isin(made_by, ["target", "sequences"]) & (labels == 10))
        | (np.isin(made_by, list(strong)) & (labels == 5))
    )
    ci95 = {}
    for name, chosen, upper in (("ci95_5_over_0", low, 5), ("ci95_10_over_5", top, 10)):
        compared = difference_of_groups(rating[chosen], labels[chosen] == upper, sources[chosen])
        ci95[name] = list(compared.ci95)
    return ci95


def high_frequencies(images: torch.Tensor) -> np.ndarray:
    """Strength of the images' fine detail, (b, 18): mean and root mean square, by channel, of what three
    blurs remove.
    """
    parts = []
    for sigma in (0.5, 0.8, 1.2):
        away = images - gaussian_blur(images, sigma)
        parts += [away.abs().mean((2, 3)), away.square().mean((2, 3)).sqrt()]
    return torch.cat(parts, dim=1).log1p().numpy()


def probe(rows: list[dict[str, Any]], chosen: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Balanced accuracy of a linear classifier that distinguishes labels of 0, between, and of 10 by high
    frequencies; half of the sources train it, the other half test it. Chance is a third."""
    chosen_rows = [rows[i] for i in np.flatnonzero(chosen)]
    x = np.concatenate(
        [
            high_frequencies(torch.stack([image_of(row) for row in chosen_rows[i : i + 512]]))
            for i in range(0, len(chosen_rows), 512)
        ]
    )
    label = np.array([row["label"] for row in chosen_rows])
    kind = (label > 0).astype(int) + (label >= 10)
    _, source = np.unique([row["source_id"] for row in chosen_rows], return_inverse=True)
    train = np.random.default_rng(seed).random(source.max() + 1)[source] < 0.5
    x = (x - x[train].mean(0)) / (x[train].std(0) + 1e-9)
    weight = 1 / np.bincount(kind[train], minlength=3)[kind[train]]
    features = torch.from_numpy(np.hstack([x, np.ones((len(x), 1))]))
    target = torch.from_numpy(kind)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = torch.from_numpy(flat).reshape(-1, 3).requires_grad_()
        errors = torch.nn.functional.cross_entropy(features[train] @ w, target[train], reduction="none")
        value = (errors * torch.from_numpy(weight)).sum() / 3 + 1e-4 * w.square().sum()
        value.backward()
        return float(value), w.grad.flatten().numpy()

    with torch.enable_grad():
        fitted = minimize(loss, np.zeros(features.shape[1] * 3), jac=True, method="L-BFGS-B").x
    guessed = (features[~train].numpy() @ fitted.reshape(-1, 3)).argmax(1)
    hit = [float((guessed[kind[~train] == k] == k).mean()) for k in range(3)]
    return {"accuracy": float(np.mean(hit)), "n": int((~train).sum())}


def audit(run: Path) -> dict[str, Any]:
    """All figures for which a labelled data set has rows."""
    config = load_yaml(run / "config.yaml")
    rows = list(rows_of(run))
    rating = rate_rows(rows, config)
    labels = np.array([row["label"] for row in rows])
    sources = np.array([row["source_id"] for row in rows])
    metrics = json.loads((run / "metrics.json").read_text())
    figures: dict[str, Any] = {
        "n": int(np.isfinite(rating).sum()),
        "rows": len(rows),
        "minutes": metrics["minutes"],
        "methods": metrics["methods"],
        "rules": by_rule_and_method(rows, rating),
    }
    graded = {
        "turns_spearman": np.array([row["sequence_id"] is not None for row in rows]),
        "damage_spearman": np.array([row["rule"] == DAMAGED for row in rows]),
        "unreached_spearman": np.array([row["rule"] == UNREACHED for row in rows]),
    }
    for name, chosen in graded.items():
        known = chosen & np.isfinite(rating)
        if known.any():
            figures[name] = spearman(labels[known], rating[known], sources[known]).as_dict("rho")
    if config["methods"] and not config["rules"]["by_target"]:  # its labels are not 0, 5 and 10
        strong = {name for name, method in config["methods"].items() if method["grade"] == "strong"}
        through = np.array([row["vae_roundtrip"] for row in rows])
        output = np.array([_made_by(row) in config["methods"] for row in rows])
        figures |= {
            **intervals(rows, rating, labels, strong),
            "shuffled": intervals(rows, rating, shuffled(rows), strong),
            "probe": {
                "with_reconstruction": probe(rows, np.ones(len(rows), bool)),
                "without_reconstruction": probe(rows, output | ~through),
            },
        }
    return figures


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    line = read_command_line(__doc__, "RUN", many=False)
    run = Path(*line.words or ["runs/shapes-adiee-data/edited"])
    line.keep("adiee-data" if run.name == "edited" else f"adiee-data-{run.name}", audit(run))
