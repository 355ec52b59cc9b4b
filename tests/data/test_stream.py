"""Rows that are read as they come: what is a row's fault, and what is none."""

import errno
from typing import Any

import pytest

from rewardedit.data.reading import Unreadable
from rewardedit.data.stream import read_each


def reading(error: Exception) -> list[Any]:
    """Results of reading three rows, the second of which raises."""

    def read(row: int) -> int:
        if row == 1:
            raise error
        return row

    return list(read_each([("a", 0), ("b", 1), ("c", 2)], read))


def test_a_row_that_cannot_be_read_costs_itself_alone():
    found = reading(ValueError("cut off"))
    assert found == [0, Unreadable("b", "cut off"), 2]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_fault_of_the_machine_is_no_row_s_and_ends_the_reading(number):
    with pytest.raises(OSError, match="the machine") as caught:
        reading(OSError(number, "the machine"))
    assert caught.value.errno == number
