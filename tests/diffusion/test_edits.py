"""Rows without an edit: images that overflowed, or that a safety checker withheld."""

import pytest
import torch
from diffusers import StableDiffusionInstructPix2PixPipeline
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from transformers import CLIPConfig, CLIPImageProcessorPil

from rewardedit import SamplingConfig, best_of_n, load_scorer, two_round_edit
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.edits import Edits
from rewardedit.evaluation.hacking import hacking_signs
from rewardedit.regions.change_map import change_mask
from rewardedit.synthesis.methods import EditRequests, MethodConfig, edit_rows
from tests.models import tiny_pipeline

TWO = SamplingConfig(2)


class FirstIsUnsafe(StableDiffusionSafetyChecker):
    """The stock checker, which finds fault with the first image of each batch."""

    def forward(self, clip_input, images):
        images[0] = 0
        return images, [i == 0 for i in range(len(images))]


@pytest.fixture(scope="module")
def guarded() -> Editor:
    """A user's pipeline with a checker."""
    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = CLIPConfig(vision_config={**tower, "image_size": 32, "patch_size": 16}, text_config=tower)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    checked = {
        "safety_checker": FirstIsUnsafe(config),
        "feature_extractor": CLIPImageProcessorPil(**size),
        "requires_safety_checker": True,
    }
    pipe = StableDiffusionInstructPix2PixPipeline(**{**tiny_pipeline().components, **checked})
    pipe.set_progress_bar_config(disable=True)
    return Editor(pipe, TWO)


@pytest.fixture(scope="module")
def editor() -> Editor:
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return Editor(pipe, TWO)


def photo(rows: int) -> torch.Tensor:
    return torch.rand(rows, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def overflowing(editor: Editor, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the VAE overflow in one row, as SDXL's does in float16."""
    decode = editor.pipe.vae.decode

    def broken(latents, *args, **options):
        latents = latents.clone()
        latents[row] = torch.nan
        return decode(latents, *args, **options)

    monkeypatch.setattr(editor.pipe.vae, "decode", broken)


def test_a_row_that_overflows_has_a_reason_and_others_their_edit(editor, monkeypatch):
    encoded = editor.encode(photo(3), ["make it red"] * 3)
    whole = editor.sample(encoded, range(3))
    assert whole.reason == [None] * 3
    overflowing(editor, 1, monkeypatch)
    found = editor.sample(encoded, range(3))
    assert [reason is None for reason in found.reason] == [True, False, True]
    assert "--dtype float32" in str(found.reason[1])
    assert torch.equal(found.images[[0, 2]], whole.images[[0, 2]])
    assert found.images[1].isnan().all()
    with pytest.raises(ValueError, match="row 1 has no edit: the edited image is not finite"):
        editor(photo(3), ["make it red"] * 3, range(3))


def test_candidates_without_an_edit_are_never_chosen(editor, guarded, monkeypatch):
    checked = best_of_n(guarded, load_scorer("l1"), photo(1)[0], "make it red", n=4, batch_size=2)
    assert checked.scores.valid.tolist() == [False, True, False, True]
    assert "safety checker" in str(checked.scores.reason[0])
    assert checked.best_seed in (1, 3)
    overflowing(editor, 0, monkeypatch)
    found = best_of_n(editor, load_scorer("l1"), photo(1)[0], "make it red", n=2)
    assert found.best_seed == 1
    assert found.best.isfinite().all()
    with pytest.raises(ValueError, match="none of 3 candidates could be scored: the edited image is not fin"):
        best_of_n(editor, load_scorer("l1"), photo(1)[0], "make it red", n=3, batch_size=1)


def test_two_rounds_need_a_first_one(guarded):
    seen = []

    def watched(source, edited):
        seen.append(edited)
        return change_mask(source, edited)

    unchecked = Editor(tiny_pipeline(), TWO)
    first = unchecked.sample(unchecked.encode(photo(3), ["make it red"] * 3), range(3)).images
    first[1] = torch.nan
    found = two_round_edit(unchecked, photo(3), ["make it red"] * 3, mask=watched, first=first)
    assert seen[0].isfinite().all()
    assert [reason is None for reason in found.reason] == [True, False, True]
    assert found.edited.isfinite().flatten(1).all(1).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="no first edit: the pipeline's safety checker withheld the image"):
        two_round_edit(guarded, photo(1), ["make it red"])


def test_a_method_says_why_it_made_no_edit(guarded):
    wanted = EditRequests(["a", "b"], photo(2), ["make it red"] * 2, [0, 1])
    made = edit_rows(
        lambda asked: guarded.sample(guarded.encode(asked.source, asked.instruction), asked.seeds),
        MethodConfig(model="own"),
        wanted,
    )
    assert "safety checker" in made[0]
    assert isinstance(made[1], torch.Tensor)


def test_no_edit_is_no_sign_of_hacking():
    edited = Edits.of(torch.stack([photo(1)[0], torch.full((3, 32, 32), torch.nan)])).images
    for values in hacking_signs(photo(2), edited, photo(2)[:, :1]).values():
        assert values.isfinite().tolist() == [True, False]
