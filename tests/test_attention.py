import pytest
import torch

from rewardedit.attention import AttentionChoice, HeadsLastProcessor, load_xformers, sdpa, set_attention
from tests.conftest import tiny_unet


def run(unet, seed=0):
    torch.manual_seed(seed)
    noise, words = torch.randn(2, 8, 8, 8), torch.randn(2, 7, 16, requires_grad=True)
    out = unet(noise, torch.tensor([3, 700]), words).sample
    out.square().sum().backward()
    return out.detach(), words.grad, unet.conv_in.weight.grad.clone()


def test_the_heads_last_processor_equals_the_stock_one_forward_and_backward():
    unet = tiny_unet()
    stock = run(unet)
    unet.zero_grad()
    unet.set_attn_processor(HeadsLastProcessor(sdpa))
    for mine, theirs in zip(run(unet), stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_auto_says_what_it_took_and_why():
    choice = set_attention(tiny_unet(), "auto")
    assert choice.backend == "sdpa"
    assert str(choice).startswith("attention: sdpa (the UNet is on cpu")


def test_asking_for_xformers_where_it_cannot_run_is_never_silent():
    with pytest.warns(UserWarning, match="xformers was asked for, SDPA is used instead: the UNet is on cpu"):
        assert set_attention(tiny_unet(), "xformers").backend == "sdpa"
    with pytest.raises(ValueError, match="expected one of auto, xformers, sdpa; got 'flash'"):
        set_attention(tiny_unet(), "flash")


def test_it_sets_every_layer_and_leaves_other_models_alone():
    unet, other = tiny_unet(), tiny_unet()
    before = {name: id(p) for name, p in other.attn_processors.items()}
    assert set_attention(unet, "sdpa") == AttentionChoice("sdpa", "as asked")
    assert {type(p).__name__ for p in unet.attn_processors.values()} == {"AttnProcessor2_0"}
    assert {name: id(p) for name, p in other.attn_processors.items()} == before


def test_masks_are_refused():
    unet = tiny_unet()
    unet.set_attn_processor(HeadsLastProcessor(sdpa))
    mask = torch.ones(2, 7)
    with pytest.raises(ValueError, match="takes no attention mask"):
        unet(torch.randn(2, 8, 8, 8), 3, torch.randn(2, 7, 16), encoder_attention_mask=mask)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_xformers_equals_sdpa_on_the_gpu(dtype):
    attend = load_xformers()
    shape = (2, 256, 4, 40)
    ours, theirs = ([torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)] for _ in range(2))
    for a, b in zip(ours, theirs, strict=True):
        b.data.copy_(a.data)
    out, wanted = attend(*ours, 40**-0.5), sdpa(*theirs, 40**-0.5)
    torch.testing.assert_close(out, wanted, rtol=2e-2, atol=2e-2)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    (wanted * weight).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=5e-2, atol=5e-2)


@pytest.mark.gpu
def test_a_unet_on_the_gpu_runs_alike_on_both():
    unet = tiny_unet().cuda()
    inputs = torch.randn(2, 8, 8, 8, device="cuda"), 3, torch.randn(2, 7, 16, device="cuda")
    with torch.no_grad():
        set_attention(unet, "sdpa")
        wanted = unet(*inputs).sample
        assert set_attention(unet, "xformers").backend == "xformers"
        torch.testing.assert_close(unet(*inputs).sample, wanted, rtol=1e-2, atol=1e-2)
