"""A kill in each stage of a run; `python tests/kills.py` makes ten."""

from tests import kills


def test_a_run_that_is_killed_and_resumed_makes_what_an_unbroken_one_makes(tiny_editor, tmp_path):
    found = kills.outcomes(tiny_editor, tmp_path, kills=1)
    assert [outcome.stage for outcome in found] == list(kills.STAGES)
    assert any(outcome.was_killed for outcome in found)
    assert not [outcome for outcome in found if outcome.differs]
