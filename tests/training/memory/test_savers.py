"""`memory: auto` takes the cheapest settings that fit the card."""

import pytest
from torch import nn

from rewardedit.data import DataConfig
from rewardedit.trainers import refl
from rewardedit.training.memory import savers
from rewardedit.training.memory.blueprint import load_blueprint
from rewardedit.training.memory.peak import GIB
from rewardedit.training.memory.savers import (
    candidates,
    fit_to_card,
    fit_training,
    memory_of_feedback,
    memory_of_pairs,
)
from rewardedit.training.memory.stages import training_memory
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.reward import RewardConfig
from rewardedit.training.trainable import TrainConfig

TRAIN = TrainConfig(batch_size=12, memory="auto", tracker="none")


def tried(train: TrainConfig, processes: int = 1) -> list[tuple[int | None, bool, bool]]:
    found = []
    for own in candidates(train, processes):
        found.append((own.micro_batch_size, own.offload_text_encoder, own.gradient_checkpointing))
    return found


def test_settings_are_tried_in_the_order_of_what_they_cost():
    filling = [12, 6, 4]
    order = [*((rows, False, False) for rows in filling), *((rows, True, False) for rows in filling)]
    order += [(rows, True, True) for rows in (*filling, 3, 2, 1)]
    assert tried(TRAIN) == order
    two = [(6, False, False), (6, True, False), *((rows, True, True) for rows in (6, 3, 2, 1))]
    assert tried(TRAIN, processes=2) == two
    given = TrainConfig(batch_size=8, micro_batch_size=2, gradient_checkpointing=True)
    assert tried(given) == [(2, False, True), (2, True, True), (1, True, True)]
    given = TrainConfig(batch_size=8, micro_batch_size=2, text_encoder_lr=1e-5)
    assert tried(given) == [(2, False, False), (2, False, True), (1, False, True)], "it is trained"
    for candidate in candidates(TRAIN):
        assert candidate.memory == "given"
        candidate.micro_batches(1)


@pytest.mark.slow
def test_the_first_that_fits_a_card_is_taken_and_told(tiny_editor):
    editor = load_blueprint(tiny_editor, 64)
    sizes = [training_memory(editor, candidate) for candidate in candidates(TRAIN)]
    assert sizes[0] > sizes[1] > sizes[2], "smaller micro-batches need less"
    assert sizes[6] < sizes[0], "so does checkpointing"
    for size in (*sizes[:3], sizes[6]):
        card = int(size / savers.SHARE) + 1
        fitted = fit_to_card(TRAIN, lambda train: training_memory(editor, train), card)
        first = next(number for number, needed in enumerate(sizes) if needed <= size)
        assert fitted.train == list(candidates(TRAIN))[first]
        assert fitted.needed == sizes[first]
    with pytest.raises(ValueError, match=r"train\.memory: expected a GPU of .* got 1\.0 GiB; give"):
        fit_to_card(TRAIN, lambda train: training_memory(editor, train), GIB)


def test_auto_refuses_a_quantised_scorer_by_name():
    """bitsandbytes' weights cannot be moved to `meta`."""
    scorer = nn.Sequential(pytest.importorskip("bitsandbytes").nn.Linear4bit(64, 64)).to("cpu")
    with pytest.raises(ValueError, match=r"memory: expected given .* set it and train\.micro_batch_size"):
        fit_to_card(TRAIN, lambda train: len(scorer.to("meta")), GIB)


def test_settings_stay_as_given_where_they_are_given_or_without_a_gpu(tiny_editor, monkeypatch):
    editor = load_blueprint(tiny_editor, 32)
    given = TrainConfig(batch_size=12)
    assert fit_training(given, memory_of_pairs(lambda: editor)) == (given, [])
    monkeypatch.setattr(savers, "card_memory", lambda: None)
    assert fit_training(TRAIN, memory_of_pairs(lambda: editor)) == (
        TrainConfig(batch_size=12, tracker="none"),
        ["memory: auto takes the settings as given, without a GPU"],
    )
    monkeypatch.setattr(savers, "card_memory", lambda: 80 * GIB)
    settings, (line,) = fit_training(TRAIN, memory_of_pairs(lambda: editor))
    assert (settings.micro_batch_size, settings.gradient_checkpointing) == (12, False)
    assert line.startswith("memory: auto takes micro_batch_size=12, gradient_checkpointing=false, ")
    assert ", offload_text_encoder=false: " in line


@pytest.mark.slow
def test_feedback_needs_what_its_dearest_stage_needs(tiny_editor, monkeypatch):
    monkeypatch.setattr(savers, "card_memory", lambda: 80 * GIB)
    data = DataConfig("shapes", limit=12, size=32)
    reward = RewardConfig("l1", num_inference_steps=(2,))
    watch = MonitorConfig(held_out={"clip_d": {"checkpoint": "shapes/clip"}}, batch_size=64)
    config = refl.Config("x", data, reward, tiny_editor, TRAIN, watch, variants=("refl",))
    needed = memory_of_feedback(config, *refl.models_of_plan(config))
    settings, (line,) = fit_training(TRAIN, needed)
    assert (settings.micro_batch_size, settings.memory) == (12, "given")
    alone = memory_of_pairs(refl.models_of_plan(config)[0])
    size = needed(settings)
    assert size > alone(settings), "watching 64 edits needs more than a step"
    assert line == str(savers.Fitted(settings, size, 80 * GIB))
