"""Choice of a UNet's attention kernel: xformers, PyTorch's own (SDPA) or, for small trainings on a CPU,
attention written out ("eager"). A fallback to another than the requested kernel is never silent.

`unet.set_attention_backend("xformers")` does nothing on the UNets of this family, and diffusers' own xformers
processor copies queries, keys and values; the processor here works in xformers' own (batch, tokens, heads,
channels) layout.
"""

import ctypes
import logging
import re
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal, get_args

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0
from jaxtyping import Float
from torch import Tensor

from rewardedit.models.extras import install_command

Backend = Literal["auto", "xformers", "sdpa", "eager"]
BACKENDS = get_args(Backend)
Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # (b, n, h, d) queries, keys, values and the scale
logger = logging.getLogger(__name__)

TEXT_TOKENS = 77  # of CLIP's text encoder
PROBE_BATCH = 4
PROBE_ROUNDS = 6
# On a CPU the backward pass of PyTorch's attention takes twice as long as that of attention written out
# (256 tokens, heads of 32); written out, it keeps (tokens, tokens) weights, which large images cannot afford.
MOST_EAGER_TOKENS = 1024


@dataclass(frozen=True)
class AttentionChoice:
    """The attention kernel of a UNet, and the reason for it: one line to print."""

    backend: Literal["xformers", "sdpa", "eager"]
    reason: str

    def __str__(self) -> str:
        return f"attention: {self.backend} ({self.reason})"


class HeadsLastProcessor:
    """A diffusers attention processor that keeps (b, n, h, d) and passes it to `attend`, without copies.

    Equal to diffusers' `AttnProcessor2_0` for the self- and cross-attention of a UNet; it takes no attention
    mask, and InstructPix2Pix has none.
    """

    def __init__(self, attend: Attend) -> None:
        self.attend = attend

    def __call__(
        self,
        attn: Attention,
        hidden_states: Float[Tensor, "b n c"],
        encoder_hidden_states: Float[Tensor, "b m e"] | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
    ) -> Float[Tensor, "b n c"]:
        if attention_mask is not None:
            raise ValueError("xformers: expected no attention mask; use attention=sdpa with masked prompts")
        if (
            hidden_states.ndim != 3
            or attn.spatial_norm is not None
            or attn.group_norm is not None
            or attn.norm_cross
        ):
            raise ValueError(
                "the xformers processor fits a UNet's transformer blocks only; use attention=sdpa"
            )

        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        assert attn.to_k is not None
        assert attn.to_v is not None
        assert attn.to_out is not None
        query = attn.to_q(hidden_states)
        key = attn.to_k(context)
        value = attn.to_v(context)
        query = query.unflatten(2, (attn.heads, -1))
        key = key.unflatten(2, (attn.heads, -1))
        value = value.unflatten(2, (attn.heads, -1))
        if attn.norm_q is not None:
            query = attn.norm_q(query)
        if attn.norm_k is not None:
            key = attn.norm_k(key)
        out = self.attend(query, key, value, attn.scale).flatten(2).to(query.dtype)
        out = attn.to_out[1](attn.to_out[0](out))
        return (out + hidden_states if attn.residual_connection else out) / attn.rescale_output_factor


def sdpa(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """PyTorch's attention in the (b, n, h, d) layout."""
    attended = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale=scale
    )
    return attended.transpose(1, 2)


def load_xformers(device: torch.device) -> Attend:
    """xformers' memory-efficient attention, ready to run on a CUDA device.

    PyPI's xformers is linked to CUDA 12. With a torch for CUDA 13 its kernels load only after CUDA 12's
    runtime (package nvidia-cuda-runtime-cu12) has been loaded for the whole process, which is done here.

    Raises:
        RuntimeError: with the reason and the remedy in plain words.
    """
    if device.type != "cuda":
        raise RuntimeError(f"the UNet is on {device}, and xformers runs on CUDA")
    if not (torch.version.cuda or "").startswith("12."):
        _preload_cuda12()
    try:
        from xformers import ops  # pyright: ignore[reportMissingImports]
    except Exception as error:  # one that was built for another torch raises anything
        raise RuntimeError(f"xformers cannot be imported ({error}); {install_command('xformers')}") from error

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        return ops.memory_efficient_attention(query, key, value, scale=scale)

    return attend


def _preload_cuda12() -> None:
    try:
        files = metadata.files("nvidia-cuda-runtime-cu12") or []
    except metadata.PackageNotFoundError:
        raise RuntimeError(
            f"torch is built for CUDA {torch.version.cuda} and xformers for CUDA 12, whose runtime is "
            "missing; "
            "pip install nvidia-cuda-runtime-cu12"
        ) from None
    for file in files:
        if file.name.startswith("libcudart.so.12"):
            ctypes.CDLL(str(file.locate()), mode=ctypes.RTLD_GLOBAL)
            return
    raise RuntimeError("nvidia-cuda-runtime-cu12 is installed but holds no libcudart.so.12; reinstall it")


@dataclass(frozen=True)
class AttentionShape:
    """One attention layer's queries (tokens) and keys (context), per head."""

    tokens: int
    context: int
    heads: int
    head_dim: int


def attention_shapes(unet: Any, side: int | None = None) -> Counter[AttentionShape]:
    """The shapes of a UNet's attention layers for latents of this side in pixels,
    with the number of layers that have each.
    """
    side = side or unet.config.sample_size
    levels = len(unet.config.down_block_types)
    shapes: Counter[AttentionShape] = Counter()
    for name, layer in unet.named_modules():
        if not isinstance(layer, Attention):
            continue
        block = re.match(r"(down|up)_blocks\.(\d+)\.", name)
        # The middle block works at the lowest resolution; up blocks climb from there.
        level = levels - 1
        if block is not None:
            level = int(block[2]) if block[1] == "down" else levels - 1 - int(block[2])
        tokens = max(side // 2**level, 1) ** 2
        context = TEXT_TOKENS if layer.is_cross_attention else tokens
        shapes[AttentionShape(tokens, context, layer.heads, layer.inner_dim // layer.heads)] += 1
    return shapes


def time_attention(
    attend: Attend, shapes: Counter[AttentionShape], device: torch.device, dtype: torch.dtype, training: bool
) -> float:
    """Seconds that one pass through layers of these shapes takes (median of rounds),
    with its backward pass in training.

    Raises:
        RuntimeError: if the kernel does not run at one of the shapes.
    """
    total = 0.0
    generator = torch.Generator(device).manual_seed(0)  # the caller's random numbers stay as they are
    for shape, layers in shapes.items():

        def random(n: int, shape: AttentionShape = shape) -> Tensor:
            size = (PROBE_BATCH, n, shape.heads, shape.head_dim)
            values = torch.randn(size, generator=generator, device=device)
            return values.to(dtype).requires_grad_(training)

        query, key, value = map(random, (shape.tokens, shape.context, shape.context))
        seconds = []
        for _ in range(PROBE_ROUNDS):
            _synchronize(device)
            began = time.perf_counter()
            out = _attend_once(attend, query, key, value, training)
            _synchronize(device)
            seconds.append(time.perf_counter() - began)
            del out
        # The first round compiles and allocates.
        total += layers * statistics.median(seconds[1:])

    return total


def _attend_once(attend: Attend, query: Tensor, key: Tensor, value: Tensor, training: bool) -> Tensor:
    try:
        with torch.set_grad_enabled(training):
            out = attend(query, key, value, query.shape[-1] ** -0.5)
            if training:
                torch.autograd.grad(out, (query, key, value), torch.ones_like(out))
        return out
    except (RuntimeError, NotImplementedError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        name = "SDPA" if attend is sdpa else "xformers"
        raise RuntimeError(f"{name} does not run on {query.device} with {query.dtype}: {reason}") from error


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


# seconds of xformers and of SDPA, by device and shapes
_measured: dict[tuple[Any, ...], tuple[float, float]] = {}


def _faster(attend: Attend, unet: Any, dtype: torch.dtype, side: int | None) -> AttentionChoice:
    """Times xformers and SDPA on the UNet's shapes, once per device, type and shapes,
    and chooses the faster.
    """
    shapes = attention_shapes(unet, side)
    training = unet.training
    where = _device_name(unet.device)
    key = (where, dtype, training, frozenset(shapes.items()))
    if key not in _measured:
        measured = time_attention(attend, shapes, unet.device, dtype, training)
        try:
            _measured[key] = measured, time_attention(sdpa, shapes, unet.device, dtype, training)
        except RuntimeError as error:
            return AttentionChoice("xformers", str(error))
    theirs, ours = _measured[key]
    passes = "forward and backward" if training else "forward"
    reason = f"{passes} on {where} with {dtype}: xformers {1000 * theirs:.2f} ms, SDPA {1000 * ours:.2f} ms"
    return AttentionChoice("xformers" if theirs < ours else "sdpa", reason)


def _trains_small_on_cpu(unet: Any, side: int | None) -> bool:
    """True if attention is faster written out."""
    tokens = max((shape.tokens for shape in attention_shapes(unet, side)), default=0)
    return unet.device.type == "cpu" and unet.training and tokens <= MOST_EAGER_TOKENS


def _own_kernel(transformer: Any, backend: str) -> AttentionChoice:
    name = type(transformer).__name__
    if backend not in ("auto", "sdpa"):
        raise ValueError(f"attention: expected auto or sdpa for {name}; got {backend!r}; leave it out")
    return AttentionChoice("sdpa", f"the kernel of {name}")


def set_attention(
    unet: Any, backend: str = "auto", dtype: torch.dtype | None = None, side: int | None = None
) -> AttentionChoice:
    """Gives every attention layer of a diffusers UNet one kernel, and returns which and why.

    "auto" times xformers (if it loads) and SDPA on the UNet's own shapes, device and type, forward and,
    for a UNet in training mode, backward, and takes the faster; on a CPU a UNet in training mode gets "eager"
    up to `MOST_EAGER_TOKENS`. "xformers" only tries whether it runs, and warns if it has to fall back.
    Call it after loading LoRA or IP-Adapter weights,
    which bring processors of their own.

    Args:
        dtype: the type that attention will run in (under autocast); None for the UNet's own.
        side: height and width of the latents; None for the UNet's configured sample size.

    Raises:
        ValueError: on an unknown backend, or another than SDPA for a transformer, which has its own kernel.
    """
    if backend not in BACKENDS:
        raise ValueError(f"attention: expected one of {', '.join(BACKENDS)}; got {backend!r}")
    if not isinstance(unet, UNet2DConditionModel):
        return _own_kernel(unet, backend)
    choice = AttentionChoice("eager" if backend == "eager" else "sdpa", "as asked")

    attend = None
    if backend in ("auto", "xformers"):
        dtype = dtype or unet.dtype
        try:
            attend = load_xformers(unet.device)
            if backend == "auto":
                choice = _faster(attend, unet, dtype, side)
            else:
                time_attention(attend, attention_shapes(unet, side), unet.device, dtype, unet.training)
                choice = AttentionChoice("xformers", f"as asked; runs on {_device_name(unet.device)}")
        except RuntimeError as error:
            choice = AttentionChoice("sdpa", str(error))
            if backend == "auto" and _trains_small_on_cpu(unet, side):
                choice = AttentionChoice("eager", "its backward pass is faster on a CPU than SDPA's")
            if backend == "xformers":
                warnings.warn(
                    f"attention: xformers was asked for, SDPA is used instead: {error}", stacklevel=2
                )

    if choice.backend == "xformers" and attend is not None:
        unet.set_attn_processor(HeadsLastProcessor(attend))
    else:
        unet.set_attn_processor(AttnProcessor() if choice.backend == "eager" else AttnProcessor2_0())

    logger.info("%s", choice)
    return choice
