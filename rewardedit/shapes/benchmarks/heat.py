"""Localisation of a planted defect by heat maps: python rewardedit/shapes/benchmarks/heat.py [SHEET.png]

A disc of another colour, 2–10 % of the image, is planted in true edits outside the requested change. Reports
the share of the heat map's strongest 5 % of pixels that lie in it, compared with chance.
"""

from pathlib import Path

import torch
from common import load_scorer, read_command_line
from torch import Tensor

from rewardedit import EditBatch
from rewardedit.cli import quiet
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.images import to_pil
from rewardedit.reports.heatmap import draw_heat, heat_map
from rewardedit.shapes import Shapes, ShapesBatch

EDITS = 560
BATCH = 70
TOP = 0.05
SCORERS = ("adiee", "vifi_clip", "clip_d", "l1")
AREA = (0.02, 0.10)  # share of the image


def plant(samples: ShapesBatch, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """True edits with a disc planted outside the mask: images, the discs' masks (b, 1, h, w),
    and whether a disc fits (b,).
    """
    generator = torch.Generator().manual_seed(seed)
    b, _, h, w = samples.source.shape
    area = torch.empty(b).uniform_(*AREA, generator=generator)
    radius = (area * h * w / torch.pi).sqrt()
    y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
    best = torch.zeros(b, 1, h, w)
    least = torch.full((b,), torch.inf)
    for _ in range(40):  # keeps the draw that overlaps the requested edit least
        centre = radius[:, None] + torch.rand(b, 2, generator=generator) * (h - 2 * radius[:, None])
        disc = ((y - centre[:, :1, None]).square() + (x - centre[:, 1:, None]).square()).sqrt() <= radius[
            :, None, None
        ]
        overlap = (disc * samples.mask[:, 0]).flatten(1).sum(1)
        better = overlap < least
        best[better, 0], least[better] = disc[better].float(), overlap[better]
    colour = torch.rand(b, 3, 1, 1, generator=generator)
    return torch.where(best > 0, colour, samples.target), best, least == 0


def top_share(heat: Tensor, disc: Tensor, top: float = TOP) -> Tensor:
    """Share of each map's strongest pixels that lies in its disc (b,)."""
    strength = heat.abs().flatten(1)
    index = strength.topk(max(1, round(top * strength.shape[1])), dim=1).indices
    return disc.flatten(1).gather(1, index).mean(1)


def measure(n: int) -> dict:
    """Shares and areas of each scorer's maps, over edits for which a disc fits outside the mask."""
    samples = Shapes("test", kinds=("add", "remove", "replace", "recolour", "resize", "move")).batch(0, n)
    edited, disc, fits = plant(samples)
    area = disc.flatten(1).mean(1)[fits].numpy()
    out = {}
    for name in SCORERS:
        scorer = load_scorer(name)
        shares = []
        for i in range(0, n, BATCH):
            rows = slice(i, i + BATCH)
            heat = heat_map(scorer, EditBatch(samples.source[rows], samples.instruction[rows], edited[rows]))
            shares.append(top_share(heat, disc[rows]))
        share = torch.cat(shares)[fits].numpy()
        versus = paired_bootstrap(
            share, area, [i for i, ok in zip(samples.id, fits.tolist(), strict=True) if ok]
        )
        out[name] = {"share": versus.mean_a, "area": versus.mean_b, "times": versus.mean_a / versus.mean_b}
        out[name]["share_minus_area_ci95"] = list(versus.ci95)
    return {"n": int(fits.sum()), "top": TOP, "scorers": out}


def draw(path: Path, n: int = 12) -> None:
    """Draws a sheet: source, planted edit and each scorer's map."""
    samples = Shapes("test", kinds=("add", "remove", "replace", "recolour", "resize", "move")).batch(0, n)
    edited, _, _ = plant(samples)
    batch = EditBatch(samples.source, samples.instruction, edited)
    maps = [draw_heat(edited, heat_map(load_scorer(name), batch)) for name in SCORERS]
    to_pil(torch.cat([torch.cat(list(p), dim=1) for p in (samples.source, edited, *maps)], dim=2)).save(path)


if __name__ == "__main__":
    line = read_command_line(__doc__, "SHEET", many=False)
    quiet()
    if line.words:
        draw(Path(*line.words))
    line.keep("heat", measure(EDITS), "python rewardedit/shapes/benchmarks/heat.py")
