"""Batches that are halved where memory runs out, on a real layer whose memory is limited by a hook."""

import weakref

import pytest
import torch
from torch import nn

from rewardedit import batch_sizes
from rewardedit.batch_sizes import BatchSize, in_batches


class Limited:
    """A layer that runs out of memory above a number of rows; keeps the sizes tried and the rows made."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sizes: list[int] = []
        self.made: list[int] = []
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.layer.register_forward_hook(self.run_out)

    def run_out(self, layer, args, output):
        self.sizes.append(len(output))
        if len(output) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")

    def __call__(self, rows: range) -> torch.Tensor:
        output = self.layer(inputs()[list(rows)])
        self.made += rows
        return output


def inputs(rows: int = 11) -> torch.Tensor:
    return torch.rand(rows, 3, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def collections(monkeypatch) -> list[int]:
    """One entry for each time that garbage is collected."""
    found: list[int] = []
    collect = batch_sizes.gc.collect
    monkeypatch.setattr(batch_sizes.gc, "collect", lambda *given: found.append(1) or collect(*given))
    return found


@pytest.mark.parametrize(
    ("limit", "size", "sizes"),
    [
        (11, 16, [11]),
        (4, 4, [4, 4, 3]),
        (4, 16, [11, 5, 2, 2, 2, 2, 2, 1]),
        (3, 8, [8, 4, 2, 2, 2, 2, 2, 1]),
        (1, 4, [4, 2, *[1] * 11]),
    ],
)
def test_the_batch_is_halved_and_nothing_is_made_twice(limit, size, sizes, collections):
    work = Limited(limit)
    found = torch.cat(list(in_batches(range(11), BatchSize(size), work)))
    assert work.sizes == sizes
    assert work.made == list(range(11))
    assert len(collections) == sum(tried > limit for tried in sizes)
    torch.testing.assert_close(found, Limited(11)(range(11)), rtol=0, atol=1e-6)


def test_what_is_made_is_kept_where_memory_runs_out_later():
    work = Limited(8)
    made = in_batches(range(11), BatchSize(4), work)
    first = next(made)
    work.limit = 2
    found = torch.cat([first, *made])
    assert work.sizes == [4, 4, 2, 2, 2, 1]
    assert work.made == list(range(11))
    torch.testing.assert_close(found, Limited(11)(range(11)), rtol=0, atol=1e-6)


def test_a_size_that_calls_share_stays_halved():
    work = Limited(2)
    size = BatchSize(4)
    for _ in range(2):
        assert len(torch.cat(list(in_batches(range(4), size, work)))) == 4
    assert work.sizes == [4, 2, 2, 2, 2]
    assert size == BatchSize(2)


def test_tensors_of_the_batch_that_did_not_fit_are_gone_before_the_next():
    large: list[weakref.ref] = []

    @torch.no_grad()
    def make(rows: range) -> torch.Tensor:
        assert all(reference() is None for reference in large)
        given = inputs(len(rows))
        large.append(weakref.ref(given))
        return work.layer(given)

    work = Limited(2)
    assert len(list(in_batches(range(8), BatchSize(8), make))) == 4
    assert len(large) == 6


@pytest.mark.parametrize(
    ("error", "tried"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), 3),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"
            ),
            3,
        ),
        (MemoryError(), 3),
        (RuntimeError("CUDA error: device-side assert triggered"), 1),
        (ValueError("edited: expected an image"), 1),
    ],
)
def test_other_errors_and_one_row_that_does_not_fit_are_raised(error, tried):
    sizes = []

    def make(rows: range) -> None:
        sizes.append(len(rows))
        raise error

    with pytest.raises(type(error)) as raised:
        list(in_batches(range(4), BatchSize(4), make))
    assert raised.value is error
    assert sizes == [4, 2, 1][:tried]


def test_an_error_of_the_caller_is_not_taken_for_the_batchs():
    work = Limited(8)
    made = in_batches(range(4), BatchSize(2), work)
    next(made)
    with pytest.raises(torch.OutOfMemoryError, match="of what is done with the batch"):
        made.throw(torch.OutOfMemoryError("of what is done with the batch"))
    assert work.sizes == [2]


def test_no_rows_make_no_batch():
    assert list(in_batches([], BatchSize(4), Limited(8))) == []


@pytest.mark.parametrize(
    ("limit", "unit", "sizes"),
    [(9, 4, [11, 4, 4, 3]), (5, 5, [11, 5, 5, 1]), (2, 4, [11, 4, 2, 2, 2, 2, 2, 1])],
)
def test_units_stay_whole_while_they_fit(limit, unit, sizes, collections):
    work = Limited(limit)
    list(in_batches(range(11), BatchSize(16, unit), work))
    assert work.sizes == sizes
