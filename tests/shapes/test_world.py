import re

import numpy as np
import pytest
import torch

from rewardedit.shapes import BACKDROPS, CORRUPTION_KINDS, EDIT_TYPES, Shapes, ShapesRows, corrupt_targets
from rewardedit.shapes.render import PHOTOGRAPHS_FOLDER, photographs, render
from rewardedit.shapes.scenes import CENTRES, sample_edits, sample_scenes
from rewardedit.shapes.sheet import draw_sheet
from rewardedit.shapes.vocabulary import BACKGROUNDS, COLOURS, PLACES, RELATIONS, SHAPES, SIZES
from tests.shapes import make_photographs as make


@pytest.fixture(scope="module")
def samples():
    return Shapes("val", backdrops=BACKDROPS).batch(0, 280)


def test_a_sample_is_the_same_however_it_is_asked_for():
    world = Shapes("train", seed=3)
    whole = world.batch(270, 20)
    part = world.batch(275, 5)
    assert part.id == whole.id[5:10]
    assert part.instruction == whole.instruction[5:10]
    assert torch.equal(part.source, whole.source[5:10])
    assert torch.equal(part.target, whole.target[5:10])


def test_splits_and_seeds_share_nothing():
    worlds = [Shapes(split, seed) for split in ("train", "val", "test") for seed in (0, 1)]
    images = [world.batch(0, 35).source for world in worlds]
    flat = torch.cat(images).flatten(1)
    assert len(torch.unique(flat, dim=0)) == len(flat)


def test_kinds_and_counts_take_turns(samples):
    assert [samples.edit_type.count(kind) for kind in EDIT_TYPES] == [40] * 7
    counts = samples.before.present.sum(1)
    assert [int((counts == n).sum()) for n in range(1, 6)] == [56] * 5


def test_the_mask_is_exact(samples):
    changed = (samples.source != samples.target).any(1, keepdim=True)
    assert not (changed & (samples.mask == 0)).any()
    objects = torch.tensor([kind != "background" for kind in samples.edit_type])
    share = (changed[objects].float().sum((1, 2, 3)) / samples.mask[objects].sum((1, 2, 3))).median()
    assert share > 0.5  # and no larger than the object before and after


def test_boxes_hold_the_object(samples):
    for i in range(0, 280, 13):
        inside = torch.zeros(64, 64)
        for x0, y0, x1, y1 in samples.boxes[i].tolist():
            inside[y0:y1, x0:x1] = 1
        if samples.edit_type[i] != "background":
            assert not ((samples.mask[i, 0] > 0) & (inside == 0)).any()
        else:
            assert samples.boxes[i].sum() == 0


def test_words_and_truth_agree(samples):
    for text, parsed, before, after in zip(
        samples.instruction, samples.parsed, samples.source_caption, samples.target_caption, strict=True
    ):
        assert before != after
        if parsed.edit_type in ("add", "replace", "recolour"):
            assert all(word in after for word in parsed.target.split())
        if parsed.position in PLACES:
            assert parsed.position in text
            assert f"at {parsed.position}" in after
        if parsed.reference is not None:
            assert parsed.position in RELATIONS
            assert f"the {parsed.reference}" in text
            assert all(word in before for word in parsed.reference.split())
        assert (parsed.size != "unchanged") == (parsed.edit_type == "resize")
        assert (parsed.source is None) == (parsed.edit_type == "add")
        assert (parsed.target is None) == (parsed.edit_type == "remove")
        assert parsed.is_global == (parsed.edit_type == "background")
        if parsed.edit_type == "remove":
            assert len(after) < len(before)


def centre(scenes, row: int, cell: int) -> np.ndarray:
    return CENTRES[cell] + scenes.offset[row, cell]


def test_what_is_put_in_a_relation_lies_in_it():
    """There are examples of every relation, and of each direction also without a reference object."""
    samples = Shapes("val", kinds=("add", "move")).batch(0, 1400)
    seen = set()
    for i, parsed in enumerate(samples.parsed):
        if parsed.position not in RELATIONS:
            continue
        edits = samples.edits
        moves = parsed.edit_type == "move"
        anchor = edits.cell[i] if parsed.reference is None else edits.reference[i]
        there = centre(samples.before, i, anchor)
        here = centre(samples.after, i, edits.to_cell[i])
        right, down = (here - there).tolist()
        holds = {
            "left": right < -12 and abs(down) < 8,
            "right": right > 12 and abs(down) < 8,
            "up": down < -12 and abs(right) < 8,
            "down": down > 12 and abs(right) < 8,
            "near": 12 < np.hypot(right, down) < 37,
            "inside": edits.cell[i] == edits.reference[i],
        }
        assert holds[parsed.position], samples.instruction[i]
        assert parsed.reference is not None or moves
        seen.add((parsed.edit_type, parsed.position, parsed.reference is None))
    directions = {("move", name, True) for name in ("left", "right", "up", "down")}
    moved = {("move", name, False) for name in RELATIONS if name != "inside"}
    assert seen == {("add", name, False) for name in RELATIONS} | moved | directions


def test_a_move_is_never_asked_for_that_holds_already():
    samples = Shapes("val", kinds=("move",)).batch(0, 1400)
    for i in np.flatnonzero(samples.edits.reference >= 0):
        right, down = centre(samples.before, i, samples.edits.cell[i]) - centre(
            samples.before, i, samples.edits.reference[i]
        )
        holds = {
            "left": right < 0 and abs(down) < abs(right) - 8,
            "right": right > 0 and abs(down) < abs(right) - 8,
            "up": down < 0 and abs(right) < abs(down) - 8,
            "down": down > 0 and abs(right) < abs(down) - 8,
            "near": np.hypot(right, down) < 29,
        }
        assert not holds[samples.parsed[i].position], samples.instruction[i]


@pytest.mark.world
def test_no_training_split_uses_a_reserved_wording():
    reserved = Shapes("val", wordings="reserved").batch(0, 1400).instruction
    usual = Shapes("train").batch(0, 5600).instruction + Shapes("val").batch(0, 1400).instruction
    words = [re.escape(word) for word in (*COLOURS, *BACKGROUNDS, *SHAPES, *SIZES, *PLACES)]
    pattern = re.compile(rf"\b({'|'.join(sorted(words, key=len, reverse=True))})\b")

    def shape(text: str) -> str:
        return re.sub(r"( _)+", " _", pattern.sub("_", re.sub(r"\ban?\b", "_", text)))

    assert not {shape(text) for text in reserved} & {shape(text) for text in usual}
    with pytest.raises(ValueError, match="for the splits val and test"):
        Shapes("train", wordings="reserved")


def test_wording_varies():
    texts = Shapes().batch(0, 1400).instruction
    assert len({text.split()[0] for text in texts}) >= 12
    assert len(set(texts)) > 1000


def test_objects_never_touch():
    rng = np.random.default_rng(0)
    scenes = sample_scenes(rng, np.full(50, 9), ("plain",))
    image = render(scenes)
    assert image.shape == (50, 3, 64, 64)
    with pytest.raises(ValueError, match="no free cell"):
        sample_edits(rng, scenes, np.zeros(50, dtype=int))


def test_candidates_have_the_shares_asked_for(samples):
    names, edited = corrupt_targets(samples, {"right": 0.5, "untouched": 0.5}, seed=1)
    rows = torch.tensor([name == "right" for name in names])
    assert 100 < int(rows.sum()) < 180
    assert torch.equal(edited[rows], samples.target[rows])
    assert torch.equal(edited[~rows], samples.source[~rows])
    with pytest.raises(ValueError, match="sum to 1"):
        corrupt_targets(samples, {"right": 0.5}, seed=1)
    with pytest.raises(ValueError, match="shares of right, untouched"):
        corrupt_targets(samples, {"perfect": 1.0}, seed=1)


@pytest.mark.parametrize("quality", [q for q in CORRUPTION_KINDS if q != "right"])
def test_every_defect_shows(samples, quality):
    edited = corrupt_targets(samples, {quality: 1.0}, seed=0)[1]
    assert ((edited - samples.target).abs().flatten(1).amax(1) > 0).float().mean() > 0.97
    assert edited.min() >= 0
    assert edited.max() <= 1


def test_rows_are_samples_with_a_candidate_each():
    rows = ShapesRows(300, shares={"untouched": 1.0}, first=275)
    assert len(rows) == 300
    assert rows[10].id == "train-0-285"
    assert torch.equal(rows[10].edited, rows[10].source)
    assert rows.quality(10) == "untouched"
    with pytest.raises(IndexError):
        rows[300]


def test_bad_worlds_are_refused():
    with pytest.raises(ValueError, match="split: expected some of train, val, test"):
        Shapes("dev")
    with pytest.raises(ValueError, match="backdrops: expected some of plain, textured, photo"):
        Shapes(backdrops=())
    with pytest.raises(ValueError, match="n >= 1"):
        Shapes().batch(0, 0)


def test_the_sheet_is_drawn(tmp_path):
    draw_sheet(tmp_path / "sheet.png", Shapes("val"), 3)
    assert (tmp_path / "sheet.png").stat().st_size > 5000


def test_every_block_and_every_draw_has_qualities_of_its_own():
    shares = {"right": 0.5, "untouched": 0.5}
    one, two = (ShapesRows(560, shares=shares, draws=draws) for draws in (1, 2))
    drawn = [[one.quality(i) for i in range(280)], [one.quality(280 + i) for i in range(280)]]
    drawn.append([two.quality(2 * i + 1) for i in range(280)])
    for series in drawn:
        assert 100 < series.count("right") < 180
    assert len({tuple(series) for series in drawn}) == 3
    assert drawn[0] == [two.quality(2 * i) for i in range(280)]


def test_the_photographs_are_scikit_image_s():
    """Photographs that nothing is drawn on have the same 256 levels as the original files;
    no value is off by more than 0.005 of a level.
    """
    for local, (name, original) in zip(photographs(), make.originals().items(), strict=True):
        backdrop = make.faded(original).transpose(2, 0, 1)
        assert np.array_equal(make.levels(local.numpy()), make.levels(backdrop)), name
        assert abs(local.numpy() - backdrop).max() * 255 < 0.005, name
    files = list(PHOTOGRAPHS_FOLDER.iterdir())
    assert sum(file.stat().st_size for file in files) < 2**20
    told = (PHOTOGRAPHS_FOLDER / "LICENSES.txt").read_text()
    assert all(file.name in told for file in files if file.suffix == ".png")
