import sys
from collections import Counter
from importlib import metadata
from types import ModuleType

import pytest
import torch

from rewardedit.diffusion import attention
from rewardedit.diffusion.attention import (
    AttentionChoice,
    AttentionShape,
    HeadsLastProcessor,
    attention_shapes,
    load_xformers,
    sdpa,
    set_attention,
)
from tests.models import tiny_unet


def run(unet, seed=0):
    torch.manual_seed(seed)
    noise = torch.randn(2, 8, 8, 8)
    words = torch.randn(2, 7, 16, requires_grad=True)
    out = unet(noise, torch.tensor([3, 700]), words).sample
    out.square().sum().backward()
    return out.detach(), words.grad, unet.conv_in.weight.grad.clone()


def test_the_heads_last_processor_equals_the_stock_one_forward_and_backward():
    unet = tiny_unet()
    stock = run(unet)
    unet.zero_grad()
    unet.set_attn_processor(HeadsLastProcessor(sdpa))
    for local, theirs in zip(run(unet), stock, strict=True):
        torch.testing.assert_close(local, theirs, rtol=1e-4, atol=1e-5)


def test_auto_says_what_it_took_and_why():
    choice = set_attention(tiny_unet().eval(), "auto")
    assert choice.backend == "sdpa"
    assert str(choice).startswith("attention: sdpa (the UNet is on cpu")


@pytest.mark.parametrize(
    ("training", "side", "taken"), [(True, 64, "eager"), (True, 66, "sdpa"), (False, 8, "sdpa")]
)
def test_auto_writes_attention_out_in_small_trainings_on_a_cpu(training, side, taken):
    unet = tiny_unet().train(training)
    assert set_attention(unet, "auto", side=side).backend == taken
    name = "AttnProcessor" if taken == "eager" else "AttnProcessor2_0"
    assert {type(p).__name__ for p in unet.attn_processors.values()} == {name}


def test_attention_written_out_equals_pytorch_s_forward_and_backward():
    unet = tiny_unet()
    assert set_attention(unet, "sdpa").backend == "sdpa"
    stock = run(unet)
    unet.zero_grad()
    assert str(set_attention(unet, "eager")) == "attention: eager (as asked)"
    for written, theirs in zip(run(unet), stock, strict=True):
        torch.testing.assert_close(written, theirs, rtol=1e-4, atol=1e-5)


class Kernel:
    """A real attention kernel that does its work `times` over and counts its calls."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls = 0

    def __call__(self, query, key, value, scale):
        self.calls += 1
        return torch.stack([sdpa(query, key, value, scale) for _ in range(self.times)]).mean(0)


@pytest.fixture
def offer(monkeypatch):
    """Puts one kernel in the place of xformers and one in the place of SDPA, as if both ran here."""

    def place(xformers: Kernel, ours: Kernel) -> None:
        monkeypatch.setattr(attention, "_measured", {})
        monkeypatch.setattr(attention, "load_xformers", lambda device: xformers)
        monkeypatch.setattr(attention, "sdpa", ours)

    return place


def test_the_cuda_12_runtime_is_loaded_where_its_package_is(monkeypatch, tmp_path):
    loaded = []
    file = metadata.PackagePath("nvidia/cuda_runtime/lib/libcudart.so.12")
    file.dist = metadata.PathDistribution(tmp_path / "nvidia_cuda_runtime_cu12-12.9.dist-info")
    monkeypatch.setattr(attention.metadata, "files", lambda name: [metadata.PackagePath("LICENSE"), file])
    monkeypatch.setattr(attention.ctypes, "CDLL", lambda path, mode: loaded.append(path))
    attention._preload_cuda12()
    assert loaded == [str(tmp_path / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12")]
    monkeypatch.setattr(attention.metadata, "files", lambda name: [])
    with pytest.raises(RuntimeError, match=r"holds no libcudart\.so\.12; reinstall it"):
        attention._preload_cuda12()


def test_an_xformers_that_cannot_be_imported_is_passed_over(monkeypatch):
    """One that was built for another torch fails in any way."""

    class Broken(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise TypeError("an unknown operator")

    monkeypatch.setitem(sys.modules, "xformers", Broken("xformers"))
    monkeypatch.setattr(attention, "_preload_cuda12", lambda: None)
    with pytest.raises(RuntimeError, match=r"xformers cannot be imported \(an unknown operator\)"):
        attention.load_xformers(torch.device("cuda"))


def test_a_shape_counts_as_often_as_layers_have_it(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(attention.time, "perf_counter", lambda: next(ticks))
    shape = AttentionShape(4, 4, 1, 2)
    once, thrice = (
        attention.time_attention(sdpa, Counter({shape: n}), torch.device("cpu"), torch.float32, False)
        for n in (1, 3)
    )
    assert thrice == 3 * once


@pytest.mark.parametrize("training", [False, True])
def test_auto_takes_the_faster_kernel_and_measures_once(offer, training):
    unet = tiny_unet().train(training)
    slow = Kernel(20)
    fast = Kernel(1)
    offer(slow, fast)
    choice = set_attention(unet, "auto")
    assert choice.backend == "sdpa"
    assert ("forward and backward" in str(choice)) == training
    assert {type(p).__name__ for p in unet.attn_processors.values()} == {"AttnProcessor2_0"}
    calls = slow.calls
    assert calls > 0
    assert set_attention(unet, "auto") == choice
    assert slow.calls == calls
    set_attention(unet, "auto", side=4)
    assert slow.calls == 2 * calls

    offer(fast, slow)
    choice = set_attention(unet, "auto")
    assert choice.backend == "xformers"
    assert "xformers" in choice.reason
    assert "SDPA" in choice.reason
    assert {p.attend for p in unet.attn_processors.values()} == {fast}


def test_a_kernel_that_fails_at_one_of_the_shapes_is_not_taken(offer):
    def fails(query, key, value, scale):
        if query.shape[1] != key.shape[1]:
            raise NotImplementedError("no operator found\nfor these inputs")
        return sdpa(query, key, value, scale)

    offer(fails, Kernel(1))
    assert str(set_attention(tiny_unet().eval(), "auto")).endswith(
        "does not run on cpu with torch.float32: no operator found)"
    )
    with pytest.warns(UserWarning, match="SDPA is used instead: xformers does not run on cpu"):
        assert set_attention(tiny_unet(), "xformers").backend == "sdpa"


def test_where_sdpa_alone_fails_xformers_is_taken_and_the_reason_says_which(offer):
    def fails(query, key, value, scale):
        raise RuntimeError("out of memory")

    offer(Kernel(1), fails)
    choice = set_attention(tiny_unet().eval(), "auto")
    assert choice == AttentionChoice("xformers", "SDPA does not run on cpu with torch.float32: out of memory")


def test_the_measured_shapes_are_those_that_the_unet_calls():
    unet = tiny_unet()
    seen = []

    def record(query, key, value, scale):
        seen.append(AttentionShape(query.shape[1], key.shape[1], query.shape[2], query.shape[3]))
        return sdpa(query, key, value, scale)

    unet.set_attn_processor(HeadsLastProcessor(record))
    unet(torch.randn(1, 8, 8, 8), 3, torch.randn(1, 77, 16))
    assert attention_shapes(unet) == Counter(seen)
    seen.clear()
    unet(torch.randn(1, 8, 16, 16), 3, torch.randn(1, 77, 16))
    assert attention_shapes(unet, side=16) == Counter(seen)


def test_asking_for_xformers_where_it_cannot_run_is_never_silent():
    with pytest.warns(UserWarning, match="xformers was asked for, SDPA is used instead: the UNet is on cpu"):
        assert set_attention(tiny_unet(), "xformers").backend == "sdpa"
    with pytest.raises(ValueError, match="expected one of auto, xformers, sdpa, eager; got 'flash'"):
        set_attention(tiny_unet(), "flash")


def test_it_sets_every_layer_and_leaves_other_models_alone():
    unet = tiny_unet()
    other = tiny_unet()
    before = {name: id(p) for name, p in other.attn_processors.items()}
    assert set_attention(unet, "sdpa") == AttentionChoice("sdpa", "as asked")
    assert {type(p).__name__ for p in unet.attn_processors.values()} == {"AttnProcessor2_0"}
    assert {name: id(p) for name, p in other.attn_processors.items()} == before


def test_masks_are_refused():
    unet = tiny_unet()
    unet.set_attn_processor(HeadsLastProcessor(sdpa))
    mask = torch.ones(2, 7)
    with pytest.raises(ValueError, match="expected no attention mask"):
        unet(torch.randn(2, 8, 8, 8), 3, torch.randn(2, 7, 16), encoder_attention_mask=mask)


@pytest.fixture
def xformers():
    """xformers' kernel on the GPU; a test that wants it is skipped where it cannot be had."""
    try:
        return load_xformers(torch.device("cuda"))
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_xformers_equals_sdpa_on_the_gpu(xformers, dtype):
    attend = xformers
    shape = (2, 256, 4, 40)
    ours, theirs = (
        [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
        for _ in range(2)
    )
    for a, b in zip(ours, theirs, strict=True):
        b.data.copy_(a.data)
    out = attend(*ours, 40**-0.5)
    wanted = sdpa(*theirs, 40**-0.5)
    torch.testing.assert_close(out, wanted, rtol=2e-2, atol=2e-2)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (wanted * weight).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=5e-2, atol=5e-2)


@pytest.mark.gpu
@pytest.mark.usefixtures("xformers")
def test_a_unet_on_the_gpu_runs_alike_on_both():
    unet = tiny_unet().cuda()
    inputs = torch.randn(2, 8, 8, 8, device="cuda"), 3, torch.randn(2, 7, 16, device="cuda")
    with torch.no_grad():
        set_attention(unet, "sdpa")
        wanted = unet(*inputs).sample
        assert set_attention(unet, "xformers").backend == "xformers"
        torch.testing.assert_close(unet(*inputs).sample, wanted, rtol=1e-2, atol=1e-2)
