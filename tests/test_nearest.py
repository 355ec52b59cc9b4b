"""Suggestions for misspelt names."""

import pytest

from rewardedit.cli.recipes import require_known
from rewardedit.config import ALIASES, meant_by, unknown_setting
from rewardedit.nearest import hint, nearest, question

SCORERS = ("clip_d", "clip_t", "clip_i", "l1", "vifi_clip", "dino_i")


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("clipd", "did you mean clip_d?"),
        ("clip-d", "did you mean clip_d?"),
        ("vificlip", "did you mean vifi_clip?"),
        ("clip", "did you mean clip_d, clip_t or clip_i?"),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_the_nearest_name_is_asked_for(name, asked):
    assert question(nearest(name, SCORERS)) == asked
    assert hint(name, SCORERS) == (f"; {asked}" if asked else "")


def test_an_alias_is_told_where_its_setting_is():
    def said(key, *known, inside=()):
        return str(unknown_setting(key, known, "train.", inside)).partition("; ")[2]

    assert said("learning_rate", "lr", "ema") == "did you mean train.lr?"
    either = said("steps", "max_steps", "ema", "num_inference_steps")
    assert either == "did you mean train.max_steps or train.num_inference_steps?"
    assert said("steps", "ema", "max_steps") == "did you mean train.max_steps?"
    assert said("learning_rate", "ema", "seed") == "known: ema, seed"
    assert said("xyz", "ema", inside=("a.xyz",)) == "did you mean train.a.xyz?"
    assert said("xyz", "ema", inside=("a.xyz", "b.xyz")) == "did you mean train.a.xyz or train.b.xyz?"


def test_an_alias_wins_over_the_nearest_name():
    assert str(unknown_setting("rank", ["train"], "", ["train.lora_rank"])).endswith("mean train.lora_rank?")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train.num_train_epochs", "train.max_steps"),
        ("epochs", "train.max_steps"),
        ("train.gradient_accumulation_steps", "train.micro_batch_size"),
        ("rank", "train.lora_rank"),
    ],
)
def test_settings_of_other_libraries_are_known(name, meant):
    with pytest.raises(ValueError, match=rf"{name}; did you mean {meant}\?$"):
        require_known("magicbrush-refl", [f"{name}=8"])


def test_passes_stand_before_updates_where_both_are():
    assert meant_by("num_train_epochs", ["max_steps", "epochs"]) == ["epochs"]


def test_aliases_name_settings_of_trainers():
    from rewardedit.cli.recipes import TRAINERS
    from rewardedit.cli.spelling import fields_of

    known: set[str] = set()
    for module in TRAINERS.values():
        top = fields_of(module, "Config") or {}
        known |= set(top)
        for group in top.values():
            known |= set((fields_of(group.module, group.name) if group else None) or ())
    for names in ALIASES.values():
        assert set(names) <= known
