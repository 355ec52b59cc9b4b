"""Each attack against values worked out by hand; gradient steps within their bound."""

import pytest
import torch

from rewardedit.batch import EditBatch
from rewardedit.evaluation.robustness.attacks import ATTACKS, attack_image
from rewardedit.evaluation.robustness.pixel_steps import ascend_pixels
from rewardedit.scorers import load_scorer, scorer

NEUTRAL = ("saturation", "sharpening", "contrast", "blur")
GRAY = torch.full((3, 8, 8), 102 / 255)


def image(seed: int, side: int = 8) -> torch.Tensor:
    """A random image on 256 levels."""
    values = torch.randint(0, 256, (3, side, side), generator=torch.Generator().manual_seed(seed))
    return values.float() / 255


def of_colour(red: float, green: float, blue: float) -> torch.Tensor:
    return torch.tensor([red, green, blue])[:, None, None].expand(3, 8, 8)


def attacked(name: str, edited: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
    return attack_image(name, "row", edited, torch.zeros_like(edited) if source is None else source)


@pytest.mark.parametrize(("name", "levels"), [*dict.fromkeys(NEUTRAL, 0).items(), ("JPEG", 2)])
def test_image_of_one_gray_stays(name: str, levels: int):
    torch.testing.assert_close(attacked(name, GRAY), GRAY, atol=(levels + 0.01) / 255, rtol=0)


def test_saturation_moves_away_from_luminance():
    edited = of_colour(0.6, 0.4, 0.4)
    luminance = 0.299 * 0.6 + 0.701 * 0.4
    expected = torch.tensor([luminance + 1.6 * (value - luminance) for value in (0.6, 0.4, 0.4)])
    torch.testing.assert_close(attacked("saturation", edited)[:, 0, 0], expected, atol=0.5 / 255, rtol=0)


def test_contrast_moves_away_from_the_mean():
    edited = torch.cat([GRAY[:, :4] - 0.1, GRAY[:, 4:] + 0.1], dim=1)
    found = attacked("contrast", edited)
    torch.testing.assert_close(found[:, 0], GRAY[:, 0] - 0.14, atol=1 / 255, rtol=0)
    torch.testing.assert_close(found[:, 7], GRAY[:, 7] + 0.14, atol=1 / 255, rtol=0)


def test_cast_is_warm_and_noise_small():
    red, green, blue = attacked("colour cast", GRAY)[:, 0, 0].tolist()
    assert red > green > blue
    assert green == pytest.approx(102 / 255)
    noise = attacked("noise", torch.full((3, 64, 64), 0.5)) - 0.5
    assert float(noise.std()) == pytest.approx(0.04, rel=0.05)


def test_sharpening_raises_and_blur_lowers_an_edge():
    edge = torch.cat([torch.full((3, 64, 32), 0.3), torch.full((3, 64, 32), 0.7)], dim=2)
    step = {name: attacked(name, edge)[0, 0, 32] - attacked(name, edge)[0, 0, 31] for name in ATTACKS}
    assert step["blur"] < 0.35 < 0.45 < step["sharpening"]


def test_source_in_cross_fade_and_in_the_left_half():
    edited = image(1)
    source = image(2)
    torch.testing.assert_close(
        attacked("cross-fade", edited, source), (edited + source) / 2, atol=0.51 / 255, rtol=0
    )
    pasted = attacked("pasted source", edited, source)
    assert pasted[..., :4].equal(source[..., :4])
    assert pasted[..., 4:].equal(edited[..., 4:])


@pytest.mark.parametrize("name", list(ATTACKS))
def test_attack_is_the_same_each_time_and_a_file_s(name: str):
    found = attacked(name, image(3), image(4))
    assert found.equal(attacked(name, image(3), image(4)))
    assert found.shape == (3, 8, 8)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    torch.testing.assert_close(found * 255, (found * 255).round())


@scorer(differentiable=True, range=(0.0, 1.0))
def redness(batch: EditBatch) -> torch.Tensor:
    return batch.edited[:, 0].mean((1, 2))


@pytest.mark.parametrize("bound", [2, 8])
def test_steps_raise_the_score_within_their_bound(bound: int):
    edited = torch.stack([image(5), image(6).clamp(0.1, 0.9).mul(255).round() / 255])
    batch = EditBatch(torch.stack([GRAY, GRAY]), ["make it red"] * 2, edited)
    found = ascend_pixels(load_scorer(redness), batch, bound)

    change = (found - edited) * 255
    assert float(change.abs().max()) <= bound + 1e-3
    torch.testing.assert_close(change[1, 0], torch.full((8, 8), float(bound)), atol=1e-3, rtol=0)
    torch.testing.assert_close(found[:, 1:], edited[:, 1:])  # the score does not depend on them
    assert bool((redness(batch.with_edited(found)) > redness(batch)).all())


def test_steps_keep_the_best_image_on_their_way():
    batch = EditBatch(GRAY[None], ["make it gray"], GRAY[None])
    nearest = load_scorer(scorer(differentiable=True)(lambda own: -(own.edited - 0.4).abs().mean((1, 2, 3))))
    assert ascend_pixels(nearest, batch, 8).equal(GRAY[None])  # 0.4 is 102/255: no step is better


def test_row_without_a_score_stays_and_others_move():
    @scorer(differentiable=True)
    def first_alone(own: EditBatch) -> torch.Tensor:
        return torch.stack([own.edited[0].mean(), own.edited[1].sum() * torch.nan])

    batch = EditBatch(torch.stack([GRAY, GRAY]), ["lighter"] * 2, torch.stack([GRAY, GRAY]))
    found = ascend_pixels(load_scorer(first_alone), batch, 2)
    assert found[1].equal(GRAY)
    assert float((found[0] - GRAY).mean() * 255) == pytest.approx(2, abs=1e-3)


def test_steps_refuse_a_scorer_without_a_gradient():
    batch = EditBatch(GRAY[None], ["lighter"], GRAY[None])
    with pytest.raises(ValueError, match="has no gradient"):
        ascend_pixels(load_scorer(lambda own: own.edited.mean((1, 2, 3))), batch, 2)
