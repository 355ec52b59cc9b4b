"""Eq. 4 by cases worked out by hand, and the sequences of three data sets."""

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset, Image

from rewardedit.data.sequences import EditSequence, SequencesConfig, open_sequences, sessions
from rewardedit.data.worlds import WorldConfig
from rewardedit.images import to_pil
from rewardedit.instructions import join_instructions
from rewardedit.synthesis.multi_turn import TurnEdit, joined_instruction, turn_edits, turn_label, turn_rule


@pytest.mark.parametrize(
    ("source", "target", "edited", "label", "rule"),
    [
        (1, 3, 0, 0.0, "turns_none"),  # an image before the source
        (1, 3, 1, 0.0, "turns_none"),  # the source
        (1, 3, 2, 5.0, "turns_some"),  # one of two turns
        (0, 3, 1, 10 / 3, "turns_some"),
        (0, 3, 2, 20 / 3, "turns_some"),
        (1, 3, 3, 10.0, "turns_all"),
        (1, 3, 4, 5.0, "turns_too_many"),
    ],
)
def test_a_label_is_the_share_of_turns_that_are_done(source, target, edited, label, rule):
    assert turn_label(source, target, edited) == pytest.approx(label)
    assert turn_rule(source, target, edited) == rule


def test_a_target_before_its_source_is_refused():
    with pytest.raises(ValueError, match="expected a target after its source"):
        turn_label(2, 2, 0)


def test_all_choices_of_three_images_are_made():
    """Two turns: the pairs 0→1, 0→2, 1→2, each with three images."""
    found = list(turn_edits(2))
    assert [(e.source, e.target, e.edited) for e in found] == [
        *((0, 1, 0), (0, 1, 1), (0, 1, 2)),
        *((0, 2, 0), (0, 2, 1), (0, 2, 2)),
        *((1, 2, 0), (1, 2, 1), (1, 2, 2)),
    ]
    assert [e.label for e in found] == [0, 10, 5, 0, 5, 10, 0, 0, 10]
    assert len(list(turn_edits(4))) == 50


def test_instructions_are_joined_in_order():
    assert join_instructions(["Add a cat.", " make it red! ", "remove the dog."]) == (
        "Add a cat, then make it red, then remove the dog"
    )
    assert join_instructions(["Add a cat."]) == "Add a cat."
    for bad in ([], ["add a cat", " "]):
        with pytest.raises(ValueError, match="expected instructions with words"):
            join_instructions(bad)


def test_the_joined_instruction_leads_from_source_to_target():
    image = torch.zeros(3, 8, 8)
    sequence = EditSequence("s", (image,) * 4, ("a", "b", "c"))
    assert joined_instruction(sequence, TurnEdit(1, 3, 0, 0.0)) == "b, then c"
    assert joined_instruction(sequence, TurnEdit(0, 1, 2, 5.0)) == "a"


def test_a_sequence_with_a_missing_image_is_refused():
    image = torch.zeros(3, 8, 8)
    with pytest.raises(ValueError, match="one image more than instructions"):
        EditSequence("s", (image, image), ("a", "b"))
    with pytest.raises(ValueError, match="expected 2 captions"):
        EditSequence("s", (image, image), ("a",), ("one",))


def test_sequences_of_shapes_have_a_caption_for_each_image():
    found = open_sequences(SequencesConfig("shapes", limit=3, offset=5))
    assert [len(found[i].instructions) for i in range(3)] == [4, 2, 3]
    one = found[0]
    assert one.captions is not None
    assert len(one.images) == len(one.captions) == 5
    assert len(set(one.captions)) == 5
    assert one.id != found[1].id
    again = open_sequences(SequencesConfig("shapes", limit=3, offset=5))[0]
    assert all(torch.equal(a, b) for a, b in zip(one.images, again.images, strict=True))


@pytest.mark.parametrize("backdrops", [("plain",), ("plain", "textured", "photo")])
def test_the_backdrop_does_not_tell_the_number_of_turns(backdrops):
    config = SequencesConfig("shapes", limit=9, shapes=WorldConfig(backdrops=backdrops))
    found = open_sequences(config)
    pairs = {(i % len(backdrops), len(found[i].instructions)) for i in range(9)}
    assert pairs == {(k, turns) for k in range(len(backdrops)) for turns in (2, 3, 4)}


def test_another_split_of_seed_data_edit_is_refused():
    with pytest.raises(ValueError, match="split: SEED-Data-Edit Part 3 has only train; got 'val'"):
        SequencesConfig("seed_data_edit", "x", split="val")


def test_a_session_is_cut_where_a_turn_is_missing():
    images = ["b", "a", "a", "a", "a", "c", "b"]
    turns = [2, 1, 2, 4, 5, 1, 1]
    assert sessions(images, turns) == [[6, 0], [1, 2], [3, 4]]


def test_magicbrush_s_turns_follow_one_another(tmp_path):
    def stored(value: float) -> str:
        path = tmp_path / f"{value}.png"
        to_pil(torch.full((3, 8, 8), value)).save(path)
        return str(path)

    rows = [
        *[("7", turn, stored(turn / 10), stored((turn + 1) / 10)) for turn in (1, 2)],
        ("8", 1, stored(0.8), stored(0.9)),
    ]
    names = ("img_id", "turn_index", "source_img", "target_img")
    records = [
        {**dict(zip(names, row, strict=True)), "mask_img": row[2], "instruction": f"turn {row[1]}"}
        for row in rows
    ]
    table = Dataset.from_list(records)
    for name in ("source_img", "target_img", "mask_img"):
        table = table.cast_column(name, Image())
    table.to_parquet(tmp_path / "train-0.parquet")
    found = open_sequences(SequencesConfig(name="magicbrush", path=str(tmp_path)))
    assert len(found) == 1
    sequence = found[0]
    assert (sequence.source_id, sequence.instructions) == ("7", ("turn 1", "turn 2"))
    levels = [image.getpixel((0, 0))[0] for image in sequence.images]
    assert levels == [round(255 * value) for value in (0.1, 0.2, 0.3)]


@pytest.fixture
def seed_folder(tmp_path: Path) -> Path:
    """SEED-Data-Edit Part 3's layout: two sequences, and one whose second image is not there."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "images").mkdir()
    for i in range(3):
        to_pil(torch.full((3, 8, 8), i / 4)).save(tmp_path / "images" / f"{i}.png")
    record = {"source_image": "0.png"}
    turns = {f"instruction_{i}": f"do {i}" for i in (1, 2)} | {f"edit_image_{i}": f"{i}.png" for i in (1, 2)}
    lines = [
        {**record, **turns},
        {**record, "instruction_1": "do 1", "edit_image_1": "2.png"},
        {**record, **turns, "edit_image_2": "gone.png"},
        {**record, **turns, "edit_image_1": "../../etc/passwd"},
        {"instruction_1": "do 1"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + "{broken\n"
    (tmp_path / "annotations" / "split_0001.jsonl").write_text(text)
    return tmp_path


def test_seed_data_edit_is_read_as_it_is_laid_out(seed_folder):
    found = open_sequences(SequencesConfig(name="seed_data_edit", path=str(seed_folder)))
    assert len(found) == 6
    assert found[0].instructions == ("do 1", "do 2")
    assert [float(image[0, 0, 0]) for image in found[0].images] == pytest.approx([0, 64 / 255, 128 / 255])
    assert len(found[1].images) == 2


@pytest.mark.parametrize(
    ("index", "message"),
    [(2, "gone.png is not there"), (3, "is not there"), (4, "has no source_image"), (5, "is not JSON")],
)
def test_a_broken_sequence_is_refused_when_it_is_read(seed_folder, index, message):
    found = open_sequences(SequencesConfig(name="seed_data_edit", path=str(seed_folder)))
    with pytest.raises(ValueError, match=message):
        found[index]


def test_sequences_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected annotations/\*\.jsonl"):
        open_sequences(SequencesConfig(name="seed_data_edit", path=str(tmp_path)))
    with pytest.raises(ValueError, match="need one"):
        SequencesConfig(name="magicbrush")
