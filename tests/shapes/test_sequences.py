"""Sequences of edits, and the oracle's rating of their last images: the mean over the turns."""

import numpy as np
import pytest
import torch

from rewardedit.reward_prompt import PRESETS
from rewardedit.shapes import BACKDROPS, Shapes, ShapesOracle, sequence
from tests.models import small_tokenizer

pytestmark = pytest.mark.world

TURNS = (2, 3, 4)


@pytest.fixture(scope="module")
def sequences():
    return [sequence(Shapes("val"), index, TURNS[index % 3]) for index in range(60)]


def test_a_sequence_goes_on_where_it_stopped(sequences):
    for one in sequences:
        turns = one.turns
        assert torch.equal(turns.source[1:], turns.target[:-1])
        assert turns.source_caption[1:] == turns.target_caption[:-1]
        assert one.instruction == ", then ".join(turns.instruction)
        assert torch.equal(one.source, turns.source[0])
        assert torch.equal(one.target, turns.target[-1])
    assert sequence(Shapes("val"), 4, 3).instruction == sequence(Shapes("val"), 4, 3).instruction
    assert len({one.id for one in sequences}) == len(sequences)


def test_no_turn_touches_what_an_earlier_one_changed(sequences):
    for one in sequences:
        edits = one.turns.edits
        touched: set[int] = set()
        for turn in range(len(one)):
            if one.turns.edit_type[turn] == "background":
                continue
            own = {int(edits.cell[turn]), int(edits.to_cell[turn]), int(edits.reference[turn])} - {-1}
            assert not own & touched
            touched |= own


def test_the_last_target_is_right_and_the_source_is_not(sequences):
    oracle = ShapesOracle()
    assert oracle.rate_sequences(sequences, torch.stack([s.target for s in sequences])).score.min() >= 9
    assert oracle.rate_sequences(sequences, torch.stack([s.source for s in sequences])).score.max() <= 1


def test_the_alignment_is_the_mean_over_the_turns(sequences):
    """After k of n turns it is 10 k / n."""
    oracle = ShapesOracle()
    for done in (1, 2, 3):
        longer = [one for one in sequences if len(one) > done]
        rating = oracle.rate_sequences(longer, torch.stack([one.turns.target[done - 1] for one in longer]))
        wanted = torch.tensor([10 * done / len(one) for one in longer])
        assert (rating.alignment - wanted).abs().mean() < 0.15
        assert ((rating.alignment - wanted).abs() < 0.5).float().mean() > 0.9


def test_bad_sequences_are_refused(sequences):
    with pytest.raises(ValueError, match="turns: expected 2 to 4; got 5"):
        sequence(Shapes(), 0, 5)
    with pytest.raises(ValueError, match="kinds: none of background fits turn 2 of 2"):
        sequence(Shapes(kinds=("background",)), 0, 2)
    with pytest.raises(ValueError, match="one image a sequence"):
        ShapesOracle().rate_sequences(sequences[:2], sequences[0].target[None])


def test_no_text_is_longer_than_the_models_read():
    """Captions, instructions in every wording and of whole sequences, and these with reward labels."""
    tokenizer = small_tokenizer()
    assert tokenizer.model_max_length == 77
    texts = []
    for wordings in ("usual", "reserved"):
        world = Shapes("val", backdrops=BACKDROPS, wordings=wordings)
        longest = [sequence(world, index, 4) for index in range(150)]
        instructions = world.batch(0, 840).instruction + [one.instruction for one in longest]
        texts += [caption for one in longest for caption in one.turns.target_caption]
        texts += world.batch(0, 840).target_caption + instructions
        for preset in (PRESETS["adiee"](), PRESETS["hive"]()):
            texts += [preset.write(text, label) for text in instructions for label in range(5)]
    lengths = np.array([len(ids) for ids in tokenizer(texts, verbose=False).input_ids])
    assert lengths.max() <= 77
