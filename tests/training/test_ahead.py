"""Steps are read one ahead, in any order the same."""

import threading

import pytest

from rewardedit.training.prefetch import Prefetcher


def test_the_next_step_is_read_while_this_one_is_computed():
    read: list[tuple[int, str]] = []
    there = threading.Event()

    def read_step(step: int) -> int:
        read.append((step, threading.current_thread().name))
        if step == 1:
            there.set()
        return 10 * step

    rows_of = Prefetcher(read_step, steps=3)
    assert rows_of(0) == 0
    assert there.wait(10), "step 1 is read though nobody asked for it yet"
    assert [rows_of(1), rows_of(2)] == [10, 20]
    assert [step for step, _ in read] == [0, 1, 2], "none beyond the last"
    assert rows_of(1) == 10, "out of turn too"
    assert read[0][1] == threading.current_thread().name
    assert read[1][1].startswith("rows")


def test_what_reading_raises_comes_where_the_step_is_asked_for():
    def read_step(step: int) -> int:
        if step == 1:
            raise ValueError("row 7")
        return step

    rows_of = Prefetcher(read_step, steps=2)
    assert rows_of(0) == 0
    with pytest.raises(ValueError, match="row 7"):
        rows_of(1)
