"""Which attention kernel a UNet runs on: xformers or PyTorch's own (SDPA). Never silently neither.

`unet.set_attention_backend("xformers")` does nothing on the UNets of this family, and diffusers' own xformers processor
copies queries, keys and values; the processor here works in xformers' own (batch, tokens, heads, channels) layout.
"""

import ctypes
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from jaxtyping import Float
from torch import Tensor

Backend = Literal["auto", "xformers", "sdpa"]
BACKENDS = ("auto", "xformers", "sdpa")
Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # (b, n, h, d) queries, keys, values and the scale
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttentionChoice:
    """What a UNet runs on, and why: one line to print."""

    backend: Literal["xformers", "sdpa"]
    reason: str

    def __str__(self) -> str:
        return f"attention: {self.backend} ({self.reason})"


class HeadsLastProcessor:
    """A diffusers attention processor that keeps (b, n, h, d) and hands it to `attend`, without copies.

    Equal to diffusers' `AttnProcessor2_0` for the self- and cross-attention of a UNet; it takes no attention mask, and
    InstructPix2Pix has none.
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
            raise ValueError("the xformers processor takes no attention mask; use attention=sdpa with masked prompts")
        if hidden_states.ndim != 3 or attn.spatial_norm is not None or attn.group_norm is not None or attn.norm_cross:
            raise ValueError("the xformers processor fits a UNet's transformer blocks only; use attention=sdpa")
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context)
        query, key, value = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))
        if attn.norm_q is not None:
            query = attn.norm_q(query)
        if attn.norm_k is not None:
            key = attn.norm_k(key)
        out = self.attend(query, key, value, attn.scale).flatten(2).to(query.dtype)
        out = attn.to_out[1](attn.to_out[0](out))
        return (out + hidden_states if attn.residual_connection else out) / attn.rescale_output_factor


def sdpa(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """PyTorch's attention in the (b, n, h, d) layout."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale).transpose(1, 2)


def load_xformers() -> Attend:
    """xformers' memory-efficient attention, ready to run on CUDA.

    PyPI's xformers is linked to CUDA 12. Beside a torch for CUDA 13 its kernels load only after CUDA 12's runtime
    (package nvidia-cuda-runtime-cu12) has been loaded for the whole process, which is done here.

    Raises:
        RuntimeError: with the reason and the remedy in plain words.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("xformers runs on CUDA, and there is no CUDA device here")
    if not (torch.version.cuda or "").startswith("12."):
        _preload_cuda12()
    try:
        from xformers import ops  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RuntimeError(f"xformers cannot be imported ({error}); pip install 'rewardedit[xformers]'") from error

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        return ops.memory_efficient_attention(query, key, value, scale=scale)

    return attend


def _preload_cuda12() -> None:
    try:
        files = metadata.files("nvidia-cuda-runtime-cu12") or []
    except metadata.PackageNotFoundError:
        raise RuntimeError(
            f"torch is built for CUDA {torch.version.cuda} and xformers for CUDA 12, whose runtime is missing; "
            "pip install nvidia-cuda-runtime-cu12"
        ) from None
    for file in files:
        if file.name.startswith("libcudart.so.12"):
            ctypes.CDLL(str(Path(str(file.locate()))), mode=ctypes.RTLD_GLOBAL)
            return
    raise RuntimeError("nvidia-cuda-runtime-cu12 is installed but holds no libcudart.so.12; reinstall it")


def _probe(attend: Attend, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Runs forward and backward once on the UNet's own device, type and head width."""
    query, key, value = (torch.zeros(1, n, 2, head_dim, device=device, dtype=dtype, requires_grad=True) for n in (64, 77, 77))
    try:
        attend(query, key, value, head_dim**-0.5).sum().backward()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise RuntimeError(f"xformers does not run on {device} with {dtype}: {str(error).strip().splitlines()[0]}") from error


def set_attention(unet: Any, backend: str = "auto", dtype: torch.dtype | None = None) -> AttentionChoice:
    """Gives every attention layer of a diffusers UNet one kernel, and says which and why.

    "auto" takes xformers where it loads and runs on the UNet's device, SDPA elsewhere. "xformers" does the same and warns
    where it has to fall back. `dtype` is the type that attention will run in (under autocast); None for the UNet's own.
    Call it after loading LoRA or IP-Adapter weights, which bring processors of their own.

    Raises:
        ValueError: on an unknown backend.
    """
    if backend not in BACKENDS:
        raise ValueError(f"attention: expected one of {', '.join(BACKENDS)}; got {backend!r}")
    choice = AttentionChoice("sdpa", "as asked")
    attend = None
    if backend != "sdpa":
        try:
            if unet.device.type != "cuda":
                raise RuntimeError(f"the UNet is on {unet.device}, and xformers runs on CUDA")
            attend = load_xformers()
            layer = next(m for m in unet.modules() if isinstance(m, Attention))
            _probe(attend, unet.device, dtype or unet.dtype, layer.inner_dim // layer.heads)
            choice = AttentionChoice("xformers", f"loads and runs on {torch.cuda.get_device_name(unet.device)}")
        except RuntimeError as error:
            attend, choice = None, AttentionChoice("sdpa", str(error))
            if backend == "xformers":
                warnings.warn(f"attention: xformers was asked for, SDPA is used instead: {error}", stacklevel=2)
    unet.set_attn_processor(HeadsLastProcessor(attend) if attend else AttnProcessor2_0())
    logger.info("%s", choice)
    return choice
