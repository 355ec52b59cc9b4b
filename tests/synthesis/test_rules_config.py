"""Settings of the label rules: groups that check themselves, and presets."""

from typing import Any

import pytest

from rewardedit.config import build, to_dict
from rewardedit.synthesis.rules_config import (
    ByTargetConfig,
    DamageConfig,
    NegativesConfig,
    RulesConfig,
    ThresholdsConfig,
)

GROUPS = (("left", "right"),)


def test_the_papers_preset_has_its_number_and_none_of_our_additions():
    paper = RulesConfig(preset="paper")
    assert (paper.thresholds.clip_d, paper.vae_roundtrip) == (0.2, 0)
    assert (paper.negatives.other_image, paper.negatives.other_instruction) == (0, 0)
    assert not paper.negatives.uses_other_rows

    ours = RulesConfig()
    assert (ours.thresholds.clip_d, ours.vae_roundtrip) == (None, 0.5)
    assert (ours.negatives.other_image, ours.negatives.other_instruction) == (0.25, 0.25)
    assert ours.negatives.uses_other_rows


def test_a_preset_fills_in_only_missing_settings():
    given = {"thresholds": {"clip_d": 0.1}, "negatives": {"other_image": 0.9}}
    rules = build(RulesConfig, {"preset": "paper", **given})
    assert (rules.thresholds.clip_d, rules.vae_roundtrip) == (0.1, 0)
    assert (rules.negatives.other_image, rules.negatives.other_instruction) == (0.9, 0)
    assert build(RulesConfig, to_dict(rules)) == rules, "what is filled in is read again as given"
    assert NegativesConfig().other_image is None, "the group's own default is untouched"


def test_a_percentile_beside_a_fixed_threshold_is_refused():
    message = r"thresholds\.clip_d_percentile: clip_d sets the threshold already, 0\.2"
    with pytest.raises(ValueError, match=message):
        RulesConfig(preset="paper", thresholds=ThresholdsConfig(clip_d_percentile=30))
    with pytest.raises(ValueError, match=rf"^{message}"):
        build(RulesConfig, {"preset": "paper", "thresholds": {"clip_d_percentile": 30}})


def test_there_may_be_more_than_one_a_row_and_never_less_than_none():
    assert RulesConfig(negatives=NegativesConfig(other_instruction=3.0)).negatives.other_instruction == 3
    with pytest.raises(ValueError, match="other_instruction: expected at least 0; got -1"):
        NegativesConfig(other_instruction=-1.0)


def test_word_groups_are_needed_to_swap_words():
    with pytest.raises(ValueError, match=r"word_swap needs word groups: set word_groups"):
        NegativesConfig(word_swap=1)
    assert NegativesConfig(word_swap=1, word_groups=GROUPS).uses_other_rows


def test_unknown_kinds_of_damage_are_refused():
    with pytest.raises(ValueError, match=r"kinds: expected some of ghost, bent, .*; got burnt"):
        DamageConfig(1, ("ghost", "burnt"))


@pytest.mark.parametrize("pairs", [[(0.5, 10.0), (0.2, 0.0)], [(0.0, 11.0)], [(0.0, 10.0), (0.0, 0.0)], []])
def test_shares_that_do_not_rise_and_labels_beyond_ten_are_refused(pairs):
    with pytest.raises(ValueError, match="labels: expected rising shares with labels from 0 to 10"):
        ByTargetConfig(tuple(pairs))


@pytest.mark.parametrize(
    ("group", "values"),
    [
        ("thresholds", {"similarity_percentile": 101}),
        ("thresholds", {"clip_d_percentile": -1}),
        ("negatives", {"other_image": 1.5}),
        ("negatives", {"object_swap": 2}),
        ("negatives", {"output_other_instruction": -0.5}),
        ("negatives", {"later_turn": -0.1}),
        ("negatives", {"word_swap": -1, "word_groups": GROUPS}),
        ("negatives", {"word_groups": (("left", "right"), ("red", "Red"))}),  # one word is no choice
        ("damage", {"per_target": 0}),
    ],
)
def test_numbers_out_of_range_are_refused(group: str, values: dict[str, Any]):
    with pytest.raises(ValueError, match=rf"^rules\.{group}\.{next(iter(values))}: expected"):
        build(RulesConfig, {group: values}, "rules.")


def test_a_share_of_the_autoencoder_is_a_share():
    with pytest.raises(ValueError, match=r"vae_roundtrip: expected a share from 0 to 1; got 1\.5"):
        RulesConfig(vae_roundtrip=1.5)
