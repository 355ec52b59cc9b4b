"""Rows that the rules make of a data set's own images."""

from dataclasses import replace

import torch

from rewardedit.batch import EditBatch
from rewardedit.data.labelled import encode_png
from rewardedit.synthesis.damage import DAMAGES
from rewardedit.synthesis.label_rules import DAMAGED
from rewardedit.synthesis.own_rows import own_rows
from rewardedit.synthesis.rules_config import DamageConfig, NegativesConfig, RulesConfig
from tests.synthesis.rows import CAPTION, INSTRUCTIONS, batch, labelling_of, part_of


def own_of(share: float):
    n = len(INSTRUCTIONS)
    rows = batch([CAPTION] * n, [CAPTION] * n)
    part = part_of(replace(rows, target=rows.edited))
    labelling = labelling_of(RulesConfig("paper", negatives=NegativesConfig(object_swap=share)))
    return [row for row in own_rows(part, list("abcdef"), {}, labelling) if row.rule == "another_object"]


def test_a_target_under_its_instruction_for_another_object_has_failed():
    rows = {row.id: row for row in own_of(1.0)}
    # The second row's star is not in the caption; no other clause of it has the words of a green star.
    assert set(rows) == {f"row-{i}/another_object" for i in (0, 2, 3, 4, 5)}
    assert rows["row-3/another_object"].instruction in ("remove the red circle", "remove the black square")
    for row in rows.values():
        assert (row.label, row.method) == (0.0, None)
        assert (row.source_caption, row.target_caption, row.clip_d) == (None, None, None)
    assert own_of(0.0) == []
    assert 0 < len(own_of(0.5)) < 5


def test_a_target_is_the_same_image_under_every_instruction():
    """No trace of the autoencoder tells which of them is its own; the image is made once."""
    n = len(INSTRUCTIONS)
    rows = replace(batch([CAPTION] * n, [CAPTION] * n), target=torch.rand(n, 3, 2, 2))
    part = part_of(rows)
    negatives = NegativesConfig(other_image=0.0, other_instruction=2.0, object_swap=1.0)
    made = []

    def reconstruct(images):
        made.extend(images)
        return torch.rand_like(images)

    labelling = labelling_of(RulesConfig(vae_roundtrip=0.5, negatives=negatives), reconstruct=reconstruct)
    found = [row for row in own_rows(part, list("abcdef"), {}, labelling) if "source" not in row.rule]
    shown = {}
    for row in found:
        shown.setdefault(row.id.split("/")[0], set()).add((row.edited, row.vae_roundtrip))
    assert {len(images) for images in shown.values()} == {1}
    assert len(found) > 3 * n
    through = [images.pop()[1] for images in shown.values()]
    assert set(through) == {True, False}
    targets = [image for image in made if any(torch.equal(image, target) for target in rows.target)]
    assert len(targets) == sum(through)


def own_with(reconstruct=torch.clone, damage=None, vae_roundtrip=None, **negatives):
    """The own rows of targets in which a bright square appears, by the paper's preset and these settings."""
    n = len(INSTRUCTIONS)
    source = torch.full((n, 3, 32, 32), 0.5)
    target = source.clone()
    target[:, :, 4:14, 4:14] = torch.linspace(0.7, 1, n)[:, None, None, None]
    rows = EditBatch(source, INSTRUCTIONS, source, target=target, source_caption=[CAPTION] * n)
    part = part_of(rows)
    rules = RulesConfig(
        "paper", vae_roundtrip=vae_roundtrip, negatives=NegativesConfig(**negatives), damage=damage
    )
    return own_rows(part, list("abcdef"), {}, labelling_of(rules, reconstruct=reconstruct))


ALIKE = (("red", "blue", "black", "pink"), ("left", "right"))


def test_a_target_under_its_instruction_with_a_word_altered_has_failed():
    rows = [row for row in own_with(word_swap=2, word_groups=ALIKE) if row.rule == "another_word"]
    asked = {}
    for row in rows:
        asked.setdefault(row.id.split("/")[0], []).append(row.instruction)
        assert (row.label, row.source_caption, row.target_caption) == (0.0, None, None)
    # "pink" and "right" stand in no instruction, where they would tell a wrong one; the second row's star is
    # green, which is no word of these kinds.
    assert sorted(asked) == [f"row-{i}" for i in (0, 2, 3, 4, 5)]
    assert sorted(asked["row-0"]) == ["remove the black circle", "remove the blue circle"]
    assert len({row.id for row in rows}) == len(rows) == 10
    assert sum(row.rule == "another_word" for row in own_with(word_swap=1, word_groups=ALIKE)) == 5
    assert not [row for row in own_with() if row.rule == "another_word"]


def test_damaged_targets_stand_under_their_own_instruction_and_under_one_that_they_do_not_follow():
    rows = own_with(damage=DamageConfig(3), word_swap=2, other_instruction=1.0, word_groups=ALIKE)
    by_id = {row.id: row for row in rows}
    assert len(by_id) == len(rows)
    own = [row for row in rows if row.rule == DAMAGED]
    assert [row.id for row in own] == [f"row-{i}/{DAMAGED}-{of}" for i in range(6) for of in (1, 2, 3)]
    assert len({row.label for row in own}) > 3
    for row in own:
        assert row.label in DAMAGES[row.method].labels
        assert row.instruction == INSTRUCTIONS[int(row.id[4])]
        assert row.edited != by_id[f"{row.id.split('/')[0]}/target"].edited
        others = [by_id[name] for name in by_id if name.startswith(f"{row.id}/")]
        assert [other.edited for other in others] == [row.edited]
        assert others[0].label == 0
        assert others[0].instruction != row.instruction
        assert others[0].method == row.method
        assert others[0].target_caption is None
    of_first = [row.id for row in rows if row.id.startswith("row-0/damaged") and row.rule != DAMAGED]
    assert of_first == [
        f"row-0/{DAMAGED}-1/another_word-2",
        f"row-0/{DAMAGED}-2/another_word-1",
        f"row-0/{DAMAGED}-3/another_instruction",
    ]
    assert not [row for row in own_with() if "damaged" in row.id]


def test_damages_are_of_the_kinds_that_are_asked_for():
    rows = own_with(damage=DamageConfig(3, ("ghost", "stained")))
    assert {row.method for row in rows if row.rule == DAMAGED} == {"ghost", "stained"}


def test_a_target_whose_damage_nobody_would_see_has_no_damaged_form(monkeypatch):
    monkeypatch.setattr("rewardedit.synthesis.damage.VISIBLE", 1.0)
    assert not [
        row for row in own_with(damage=DamageConfig(3), word_swap=1, word_groups=ALIKE) if "damaged" in row.id
    ]


def test_a_share_of_damaged_targets_goes_through_the_autoencoder():
    white = encode_png(torch.ones(3, 32, 32))
    rows = own_with(torch.ones_like, damage=DamageConfig(3), vae_roundtrip=0.5)
    through = [row.edited == white for row in rows if row.rule == DAMAGED]
    assert 4 < sum(through) < 14
    assert through == [row.vae_roundtrip for row in rows if row.rule == DAMAGED]
    assert [row.edited for row in rows] == [
        row.edited for row in own_with(torch.ones_like, damage=DamageConfig(3), vae_roundtrip=0.5)
    ]
