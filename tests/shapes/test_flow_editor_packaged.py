"""The small flow-matching editor that comes with the package, where a user takes it."""

import json

import pytest
import torch
from diffusers import Flux2KleinPipeline

from rewardedit import best_of_n, load_editor, load_scorer
from rewardedit.models import FOLDER, NAMES
from rewardedit.shapes import Shapes, ShapesOracle
from rewardedit.shapes.packaging import MOST_BYTES
from tests.readme import WORLD

pytestmark = pytest.mark.world

NAME = "shapes/flow-editor"


@pytest.fixture(scope="module")
def editor():
    return load_editor(NAME, device="cpu", dtype=torch.float32)


def test_it_is_a_small_klein(editor):
    files = [path for path in (FOLDER / NAMES[NAME]).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert type(editor.pipe) is Flux2KleinPipeline
    recorded = json.loads((WORLD / "benchmarks" / "results" / "flow-editor.json").read_text())
    assert editor.settings.guidance_scale == recorded["guidance_scale"]


def test_it_edits_as_it_was_measured(editor):
    samples = Shapes("test").batch(0, 28)
    edits = editor(samples.source, samples.instruction, seeds=range(28))
    oracle = ShapesOracle()
    score, untouched = (oracle.rate(samples, images).score.mean() for images in (edits, samples.source))
    assert score > untouched + 2


def test_the_best_of_its_edits_is_chosen(editor):
    sample = Shapes("test").batch(1, 1)
    scorer = load_scorer("adiee", checkpoint="shapes/adiee").to("cpu")
    result = best_of_n(editor, scorer, sample.source[0], sample.instruction[0], n=3, num_inference_steps=4)
    assert result.best_seed == int(result.scores.score.argmax())
