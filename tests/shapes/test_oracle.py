"""The oracle is held to its words. Ratings are 0–10; every promise is kept by every sample,
not on average.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rewardedit.shapes import BACKDROPS, Shapes, ShapesBatch, ShapesOracle, corrupt_targets
from rewardedit.shapes.corruptions import wrong_colour, wrong_place
from rewardedit.shapes.render import BACKGROUND_RGB, OBJECT_RGB, render, render_backgrounds

pytestmark = pytest.mark.world


def score(samples: ShapesBatch, edited: torch.Tensor) -> torch.Tensor:
    return ShapesOracle().rate(samples, edited).score


def rows(samples: ShapesBatch, *kinds: str) -> torch.Tensor:
    return torch.tensor([kind in kinds for kind in samples.edit_type])


DRAWN = ("add", "replace", "recolour", "resize", "move")


@pytest.fixture(scope="module")
def samples() -> ShapesBatch:
    return Shapes("val").batch(0, 280)


def blur(image: torch.Tensor, sigma: float) -> torch.Tensor:
    k = int(4 * sigma)
    line = torch.exp(-(torch.arange(-k, k + 1.0) ** 2) / (2 * sigma**2))
    line = (line / line.sum()).expand(3, 1, -1)
    image = F.conv2d(F.pad(image, (k, k, 0, 0), "replicate"), line[:, :, None], groups=3)
    return F.conv2d(F.pad(image, (0, 0, k, k), "replicate"), line[..., None], groups=3)


@pytest.mark.parametrize("backdrop", BACKDROPS)
def test_the_target_is_right_and_the_source_is_not(backdrop):
    samples = Shapes("val", backdrops=(backdrop,)).batch(0, 280)
    assert score(samples, samples.target).min() >= 9
    assert score(samples, samples.source).max() <= 1


def test_an_add_without_a_place_is_right_anywhere_free():
    samples = Shapes("val", kinds=("add",)).batch(0, 280)
    free = torch.from_numpy(~samples.edits.says_place & (samples.edits.relation < 0))
    moved = score(samples, wrong_place(samples, np.random.default_rng(0)).images)
    assert moved[free].min() >= 9
    assert moved[~free].max() <= 3


def test_an_add_between_two_cells_is_right_too():
    samples = Shapes("val", kinds=("add",)).batch(0, 280)
    alone = (samples.before.present.sum(1) == 1) & ~samples.edits.says_place & (samples.edits.cell != 4)
    alone &= samples.edits.relation < 0
    alone &= (samples.before.shape[:, 4] == -1) & (samples.edits.size < 2)
    after = samples.after
    offset = after.offset.copy()
    at = np.flatnonzero(alone), samples.edits.cell[alone]
    towards = np.sign(32 - (np.stack([at[1] % 3, at[1] // 3], axis=1) * 21.33 + 10.67))
    neighbour = at[1] + np.where(towards[:, 0] != 0, towards[:, 0], 3 * towards[:, 1]).astype(int)
    clear = samples.before.shape[at[0], neighbour] == -1
    # 4.5 pixels off the centre of its cell, an object lies over the border and is still whole in its patch.
    offset[at] = np.where(towards[:, :1] != 0, towards * [1, 0], towards * [0, 1]) * 4.5
    image = render(replace(after, offset=offset.astype(np.float32)))
    chosen = torch.from_numpy(at[0][clear])
    assert len(chosen) > 5
    assert score(samples, image)[chosen].min() >= 9


def test_a_cross_fade_is_no_edit(samples):
    assert score(samples, samples.source.lerp(samples.target, 0.5)).max() <= 3


@pytest.mark.parametrize("sigma", [2.0, 3.0])
def test_a_blurred_object_is_no_object(samples, sigma):
    near = F.max_pool2d(samples.mask, 9, 1, 4)
    edited = torch.lerp(samples.target, blur(samples.target, sigma), near.expand_as(samples.target))
    assert score(samples, edited)[rows(samples, *DRAWN)].max() <= 3


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("keep_first", [True, False])
def test_half_an_edit_is_no_edit(samples, axis, keep_first):
    # "Half" is half of the area that changes: of a triangle or a ring as well as of a square.
    changed = (samples.target - samples.source).abs().sum(1).gt(0).float().sum(1 if axis == 0 else 2)
    share = changed.cumsum(1) / changed.sum(1, keepdim=True)
    middle = (share < 0.5).sum(1)[:, None, None]
    line = torch.arange(64) if axis == 0 else torch.arange(64)[:, None]
    drawn = (
        ((line < middle) if keep_first else (line > middle))
        .float()
        .expand(-1, 64, 64)[:, None]
        .expand_as(samples.source)
    )
    # The upper part of a triangle is a triangle: where no size was asked for, it is a right edit.
    whole = rows(samples, "add") & torch.tensor(["triangle" in text for text in samples.instruction])
    cut = ~whole if axis == 1 and keep_first else torch.ones_like(whole)
    rated = score(samples, samples.source.lerp(samples.target, drawn))
    # Half of a change of size is a smaller change of size.
    resized = rows(samples, "resize")
    assert rated[cut & ~resized].max() <= 3
    assert rated[resized].max() < 8


def test_a_flat_fill_is_no_edit(samples):
    samples = samples[:70]
    for colour in (*OBJECT_RGB, *BACKGROUND_RGB):
        flat = colour[None, :, None, None].expand_as(samples.source)
        # Where the only object was to be removed, the bare background is the right edit, more or less.
        bare = (samples.target - flat).abs().flatten(1).amax(1) < 0.2
        assert score(samples, flat)[~bare].max() <= 3


def test_a_wrong_colour_and_a_wrong_place_are_no_edit(samples):
    assert score(samples, wrong_colour(samples, np.random.default_rng(0)).images).max() <= 3
    says = torch.from_numpy(samples.edits.says_place | (samples.edits.relation >= 0))
    placed = rows(samples, "move") | (rows(samples, "add") & says)
    assert score(samples, wrong_place(samples, np.random.default_rng(0)).images)[placed].max() <= 3


def test_a_right_edit_with_a_damaged_background_lies_between(samples):
    # Noise on every pixel that is more than twelve pixels away from all objects, before and after.
    images = ((samples.source, samples.before), (samples.target, samples.after))
    objects = sum(
        (p - render_backgrounds(scene)).abs().amax(1, keepdim=True).gt(0.01).float() for p, scene in images
    )
    noise = 0.3 * torch.randn(samples.target.shape, generator=torch.Generator().manual_seed(0))
    far = F.max_pool2d(objects, 25, 1, 12) == 0
    rated = score(samples, (samples.target + noise * far).clamp(0, 1))
    kept = ~rows(samples, "background") & (far.sum((1, 2, 3)) > 400)
    assert kept.sum() > 100
    assert rated[kept].min() > 2
    assert rated[kept].max() < 8


def test_worse_is_rated_lower(samples):
    samples = samples[:70]
    fades = [
        score(samples, samples.target.lerp(samples.source, share)) for share in (0, 0.1, 0.2, 0.3, 0.4, 0.5)
    ]
    blurs = [score(samples, blur(samples.target, sigma)) for sigma in (0.3, 0.7, 1.0, 1.5, 2.0)]
    spots = []
    for side in (0, 8, 16, 24, 32):
        spoiled = samples.target.clone()
        spoiled[:, :, 64 - side :, :side] = 0.5
        spots.append(score(samples, spoiled))
    for name, series in (("fade", fades), ("blur", blurs), ("spot", spots)):
        for better, worse in itertools.pairwise(series):
            assert worse.mean() <= better.mean() + 1e-4, name
            assert (worse <= better + 0.6).float().mean() > 0.97, name


def test_aspects_tell_what_is_wrong(samples):
    oracle = ShapesOracle()
    untouched = oracle.rate(samples, samples.source)
    keeps = rows(samples, "add", "remove", "move")
    assert untouched.alignment.max() <= 1
    assert untouched.consistency[rows(samples, "add")].min() >= 9
    over = oracle.rate(samples, corrupt_targets(samples, {"over_done": 1.0}, 0)[1])
    assert over.alignment[keeps].mean() > 8
    assert over.consistency[keeps].mean() < 6


def others(samples: ShapesBatch) -> np.ndarray:
    """(b, 9) True where a cell holds an object that the instruction does not name."""
    present = samples.after.present.copy()
    drawn = rows(samples, *DRAWN).numpy()
    present[drawn, samples.edits.to_cell[drawn]] = False
    return present


def test_consistency_is_the_cube_of_the_share_that_survives(samples):
    """With one of n other objects gone the share is (n − 1) / n: 10 / 8 where there were two."""
    samples = samples[:70]
    n = others(samples).sum(1)
    shape = samples.after.shape.copy()
    lost = np.flatnonzero((n >= 2) & ~rows(samples, "background").numpy())
    shape[lost, others(samples)[lost].argmax(1)] = -1
    found = ShapesOracle().rate(samples, render(replace(samples.after, shape=shape))).consistency[lost]
    wanted = torch.from_numpy(10 * ((n[lost] - 1) / n[lost]) ** 3).float()
    assert set(n[lost]) >= {2, 3, 4}
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.3)


def test_damage_counts_by_its_area(samples):
    """A square of 18 × 18 pixels where nothing stood, and the soft rim that its edges have for an eye that
    averages over 3 × 3: about 360 pixels, of 60 for consistency, of 300 for quality.
    """
    samples = samples[:70]
    empty = ~samples.before.present & ~samples.after.present
    spoiled = samples.target.clone()
    chosen = np.flatnonzero(empty.any(1) & rows(samples, "remove", "recolour", "resize").numpy())
    for i, cell in zip(chosen, empty[chosen].argmax(1), strict=True):
        x, y = (int((k + 0.5) * 64 / 3) - 9 for k in (cell % 3, cell // 3))
        spoiled[i, :, y : y + 18, x : x + 18] = torch.tensor([1.0, 0.0, 1.0])[:, None, None]
    found = ShapesOracle().rate(samples, spoiled)
    assert len(chosen) > 20
    torch.testing.assert_close(
        found.consistency[chosen], torch.full((len(chosen),), 10 / (1 + 360 / 60)), rtol=0, atol=0.3
    )
    torch.testing.assert_close(
        found.quality[chosen], torch.full((len(chosen),), 10 / (1 + 360 / 300)), rtol=0, atol=0.3
    )


def test_other_objects_may_not_drift(samples):
    samples = samples[:140]
    alone = np.flatnonzero((others(samples).sum(1) == 1) & ~rows(samples, "background").numpy())
    cell = others(samples)[alone].argmax(1)
    small = samples.after.size[alone, cell] == 0  # what is larger would leave its cell
    alone = alone[small]
    cell = cell[small]

    def consistency(pixels: float) -> torch.Tensor:
        offset = samples.after.offset.copy()
        offset[alone, cell, 0] -= pixels * np.where(offset[alone, cell, 0] > 0, 1, -1).astype(np.float32)
        return ShapesOracle().rate(samples, render(replace(samples.after, offset=offset))).consistency[alone]

    assert len(alone) > 4
    assert consistency(1.0).min() >= 9
    assert consistency(4.5).max() <= 3


def test_it_is_no_scorer_and_wants_one_picture_a_sample(samples):
    from rewardedit import Scorer

    assert not isinstance(ShapesOracle(), Scorer)
    with pytest.raises(ValueError, match="one image a sample"):
        ShapesOracle().rate(samples, samples.target[:3])
