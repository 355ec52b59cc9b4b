"""Peak memory on `meta`: a calculation by hand, autocast's types, attention and checkpointing."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rewardedit.training.memory.peak import peak_memory


def test_bytes_by_hand():
    """A product has 512 numbers, their squares another 512;
    only without a gradient is the product let go for the sum.
    """
    with torch.device("meta"):
        layer = nn.Linear(16, 32, bias=False)
        x = torch.empty(16, 16)

    def forward() -> Tensor:
        return layer(x).square().sum()

    with torch.no_grad():
        assert peak_memory(forward).peak == 4 * (512 + 512)
    found = peak_memory(forward)
    assert found.kept == 4 * (512 + 1), "the product, whose square's gradient needs it, and the sum"
    assert found.peak >= found.kept + 4 * 512, "the weight's gradient has as many numbers as the product"


def test_types_are_those_of_autocast_on_cuda():
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        x = torch.empty(4, 8)
    seen: list[torch.dtype] = []
    for layer in layers:
        layer.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    peak_memory(lambda: layers(x).sum(), torch.float16)
    assert seen == [torch.float16, torch.float32]


def test_attention_keeps_no_matrix_of_all_pairs():
    query = torch.empty(1, 8, 4096, 40, device="meta", requires_grad=True)
    found = peak_memory(lambda: nn.functional.scaled_dot_product_attention(query, query, query).sum())
    assert found.peak < 8 * 4096 * 4096


def test_queries_may_share_keys_and_values():
    query, shared = (torch.empty(1, heads, 64, 16, device="meta", requires_grad=True) for heads in (8, 2))
    attend = nn.functional.scaled_dot_product_attention
    found = peak_memory(lambda: attend(query, shared, shared, enable_gqa=True).sum())
    assert found.kept > 3 * 8 * 64 * 16 * 4, "queries' result, and keys and values for each of them"
    assert shared.grad is not None
    assert shared.grad.shape == shared.shape


def test_whole_numbers_keep_their_values():
    """Three rows are chosen and squared: what is counted depends on the numbers."""
    x = torch.empty(4, 1024, device="meta")
    numbers = torch.tensor([3, 1, 3, 3])

    def forward() -> Tensor:
        there = numbers.to("meta")
        counted = torch.arange(int(there.max()), device="meta")
        assert counted.tolist() == [0, 1, 2]
        return x[there == 3].square().sum()

    with torch.no_grad():
        rows = peak_memory(forward).peak / (4 * 1024)
    assert 6 <= rows < 6.1


def test_what_is_checkpointed_is_computed_again_and_counted():
    with torch.device("meta"):
        block = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)))
        x = torch.empty(1024, 64)
    plain = peak_memory(lambda: block(x).sum())

    def one_segment() -> Tensor:
        return checkpoint(block, x, use_reentrant=False).sum()

    def many_segments(y: Tensor = x) -> Tensor:
        for part in block:
            y = checkpoint(part, y, use_reentrant=False)
        return y.sum()

    assert peak_memory(one_segment).kept < plain.kept / 4
    assert peak_memory(one_segment).peak > 0.9 * plain.peak, "all of it is there again in the backward pass"
    assert peak_memory(many_segments).peak < 0.8 * plain.peak
