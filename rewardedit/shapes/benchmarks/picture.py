"""Draws the README's picture: a source, eight edits, the best by a scorer, and the heat map of its score.

python rewardedit/shapes/benchmarks/picture.py FILE
"""

from common import load_scorer, read_command_line
from PIL import Image

from rewardedit import EditBatch, best_of_n, load_editor
from rewardedit.images import to_pil
from rewardedit.reports.captioned import captioned
from rewardedit.reports.heatmap import draw_heat, heat_map
from rewardedit.shapes import Shapes

SAMPLE = 21  # of the test split
CANDIDATES = 8
LARGE, SMALL = 256, 96  # pixels a side


def panel(image, side: int) -> Image.Image:
    return to_pil(image).resize((side, side), Image.Resampling.BICUBIC)


def main(path: str) -> None:
    sample = Shapes("test").batch(SAMPLE, 1)
    scorer = load_scorer("adiee")
    result = best_of_n(
        load_editor("shapes/editor"), scorer, sample.source[0], sample.instruction[0], n=CANDIDATES
    )
    scores = result.scores.score.tolist()
    batch = EditBatch(sample.source, sample.instruction, result.best[None])
    heat = draw_heat(batch.edited, heat_map(scorer, batch))[0]

    first = [
        ("source", sample.source[0]),
        (f"best of {CANDIDATES}", result.best),
        ("heat map of its score", heat),
    ]
    top = captioned([(title, panel(image, LARGE)) for title, image in first], [f"“{sample.instruction[0]}”"])
    order = sorted(range(CANDIDATES), key=scores.__getitem__, reverse=True)
    below = captioned(
        [(f"{scores[i]:.1f}", panel(result.images[i], SMALL)) for i in order],
        ["All candidates with their scores, from 0 to 10: drawn shapes, by the packaged small models."],
    )
    page = Image.new("RGB", (max(top.width, below.width), top.height + below.height), top.getpixel((0, 0)))
    page.paste(top, (0, 0))
    page.paste(below, (0, top.height))
    page.save(path, optimize=True)


if __name__ == "__main__":
    main(read_command_line(__doc__, "FILE").words[0])
