"""Random numbers of the label rules."""

import pytest

from rewardedit.synthesis.data_rows import RowDraws
from rewardedit.synthesis.labelling import STREAMS
from rewardedit.synthesis.rules_config import RulesConfig
from tests.synthesis.rows import labelling_of

# First number of each stream of row 7 by the seed 42. The recorded audits and the shipped scorer's data were
# made by these numbers: others make other data.
FIRST = {
    "row": 0.1130,
    "turn_roundtrip": 0.7939,
    "output_roundtrip": 0.0031,
    "output_other_instruction": 0.9442,
    "later_turn": 0.0198,
    "damage": 0.2243,
    "turn_choice": 0.8062,
}
ROW = (0.1130, 0.7768, 0.7476, 0.4431, 0.2099, 0.0524, 0.8756, 0.2720, 0.3606)


def test_random_numbers_are_those_of_the_recorded_data():
    labelling = labelling_of(RulesConfig(), seed=42)
    first = {stream: float(labelling.draws(stream, 7, 1)) for stream in STREAMS}
    assert first == pytest.approx(FIRST, abs=1e-4)
    assert labelling.draws("row", 7, len(RowDraws._fields)).tolist() == pytest.approx(ROW, abs=1e-4)


def test_streams_differ_by_row_and_by_method():
    labelling = labelling_of(RulesConfig(), seed=42)
    numbers = [labelling.draws("output_other_instruction", i, 1, offset) for i in (0, 1) for offset in (0, 9)]
    assert len(set(map(float, numbers))) == 4
