"""Settings, labels, trained parameters and optimizer of fine-tuning an editor."""

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers.training_utils import cast_training_params
from torch import nn

from rewardedit import devices
from rewardedit.config import require_unset
from rewardedit.devices import Precision
from rewardedit.diffusion.attention import Backend
from rewardedit.diffusion.editor_files import LORA
from rewardedit.diffusion.editors import Editor, load_editor
from rewardedit.diffusion.families import EditFamily, family_that_loads
from rewardedit.diffusion.quantized import require_quantizable
from rewardedit.models import pretrained, resolve_model
from rewardedit.models.four_bit import Bits
from rewardedit.reward_prompt import RewardEmbedding, RewardPrompt
from rewardedit.training.loop import LoopConfig
from rewardedit.training.optimizer import AdamW, Muon, parameter_groups

# learning rate of the reward embedding and, with text_encoder_lr, of the label words' token embeddings
EMBEDDING_LR = 1e-2


@dataclass(frozen=True)
class TrainConfig(LoopConfig):
    """Settings of fine-tuning; the defaults are those of ADIEE's reward-conditioned MagicBrush."""

    ema: float | None = 0.9999
    micro_batch_size: int | None = None  # images per process and forward pass; None: all of a process's share
    # schedule of the learning rate after the warm-up
    lr_scheduler: Literal["constant_with_warmup", "cosine"] = "constant_with_warmup"
    # optimizer; adamw8bit needs bitsandbytes; muon trains hidden matrices, with AdamW for the rest
    optimizer: Literal["adamw", "adamw8bit", "muon"] = "adamw"
    muon_lr: float = 5e-3  # Muon's learning rate, for matrices and convolutions except first and last layer
    gradient_checkpointing: bool = False  # gradient checkpointing of the UNet
    # text encoder in CPU memory between previews and checks, which alone use it: prompts are encoded before
    # the training. Each of them then takes some seconds longer
    offload_text_encoder: bool = False
    # weights of the frozen VAE and text encoders, and of ReFL's reward where its scorer allows it, in bf16
    # from the first step on: steps compute the same, previews and checks compute with autocast
    frozen_in_bf16: bool = False
    # auto: on a GPU, smaller micro-batches, bf16 for frozen parts, text encoder offloading and gradient
    # checkpointing are taken as far as the card needs them
    memory: Literal["given", "auto"] = "given"
    conditioning_dropout: float = 0.05  # share of rows without text, without both, and without image, each
    # γ of the min-SNR weighting of the diffusion loss; None: all time steps have the same weight
    min_snr: float | None = None
    lora_rank: int | None = None  # rank of the LoRA; None: full fine-tuning
    lora_alpha: int | None = None  # α of the LoRA; None: as lora_rank
    # bits of the frozen denoiser and large text encoder under the LoRA, for editors by flow matching
    # (bitsandbytes); None: off
    quantize: Bits | None = None
    # learning rate of the text encoder; None: it is frozen, and prompts are encoded once
    text_encoder_lr: float | None = None
    null_text_target: Literal["edited", "source"] = "edited"  # training target of rows without text
    attention: Backend = "auto"  # kernel of the UNet's attention; auto takes the faster one
    # compile the blocks that the denoiser repeats with torch.compile, for its steps and for rollouts
    compile: bool = False
    # on a GPU, record the denoiser's calls in rollouts as CUDA graphs and replay them with the weights of the
    # moment; a recording keeps the memory of a call
    graphs: bool = False
    # images that the VAE encodes at a time; None: 2 million pixels' worth, at most 64
    encode_batch_size: int | None = None
    validate_every: int = 0  # updates between two validations; 0: none
    validation_rows: int = 8  # rows that are edited at each validation

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("micro_batch_size", "encode_batch_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1; got {getattr(self, name)}")
        self.micro_batches(processes=1)
        if self.lora_rank is None:
            require_unset(self, ("lora_alpha",), "without lora_rank; give that too")
            if self.quantize is not None:
                raise ValueError(
                    "quantize: quantised weights cannot be trained; set lora_rank, or leave quantize out"
                )
        if self.lora_rank and self.text_encoder_lr:
            raise ValueError(
                "text_encoder_lr: a LoRA holds the UNet's weights alone; leave one of the two out"
            )
        if self.offload_text_encoder and self.text_encoder_lr:
            raise ValueError(
                "offload_text_encoder: the text encoder is trained, and needed in each step; leave one of it "
                "and text_encoder_lr out"
            )
        if self.frozen_in_bf16:
            require_half_weights(self)
        if not 0 <= self.conditioning_dropout <= 1 / 3:
            raise ValueError(
                f"conditioning_dropout: expected a share from 0 to 1/3; got {self.conditioning_dropout}"
            )

    @property
    def has_half_weights(self) -> bool:
        """True if frozen parts are held in bf16 on this machine, which must compute in it."""
        return self.frozen_in_bf16 and devices.precision_here(self.mixed_precision) == "bf16"

    @property
    def result(self) -> str:
        """Name of the result's folder."""
        return "lora" if self.lora_rank else "pipeline"

    def micro_batches(self, processes: int) -> tuple[int, int]:
        """Images of one forward pass, and forward passes of a process per update.

        Raises:
            ValueError: if the batch does not divide among the processes and their passes.
        """
        micro = self.micro_batch_size or max(1, self.batch_size // processes)
        unit = processes * micro
        if self.batch_size % unit:
            nearest = -(-self.batch_size // unit) * unit
            raise ValueError(
                f"batch_size: expected a multiple of {processes} process{'es' * (processes > 1)} × "
                f"{micro} images "
                f"a forward pass; got {self.batch_size}; take {nearest}, or another micro_batch_size"
            )
        return micro, self.batch_size // unit


def require_half_weights(config: TrainConfig) -> None:
    """Raises ValueError for a training in another type, or of the text encoder too."""
    if config.mixed_precision != "bf16":
        raise ValueError(
            f"frozen_in_bf16: expected mixed_precision: bf16; got {config.mixed_precision}; set it, or leave "
            "frozen_in_bf16 out"
        )
    if config.text_encoder_lr:
        raise ValueError(
            "frozen_in_bf16: the text encoder is trained; leave one of it and text_encoder_lr out"
        )


@dataclass
class RewardLabels:
    """Labels of a training set, parallel to its rows."""

    prompt: RewardPrompt | None  # None: fine-tuning without conditioning
    label: list[int | None]  # None: the row is left out (its score is invalid, or below a threshold)


@dataclass
class TrainedModules:
    unet: Any
    embedding: RewardEmbedding | None
    text_encoder: Any | None  # None: not trained
    # the text encoder's token embeddings, if those of the label's words have their own learning rate
    words: nn.Parameter | None
    trained: list[nn.Parameter] = field(default_factory=list)


def load_base(name: str, device: str | torch.device, quantize: Bits | None = None) -> Editor:
    """Loads the editor that fine-tuning starts from.

    Raises:
        ValueError: if it is a LoRA, whose adapter fine-tuning could not distinguish from its own, or cannot
            be quantised.
    """
    require_pipeline(name)
    on_cpu = torch.device(device).type == "cpu"
    dtype = "float32" if on_cpu or not is_lora_only(name) else "bfloat16"
    return load_editor(name, attention="sdpa", device=device, dtype=dtype, quantize=quantize)


def is_lora_only(name: str) -> bool:
    """True for a base that is too large to be trained whole, which is loaded in bf16 on a GPU."""
    try:
        family = family_that_loads(pretrained.load_index(resolve_model(name)))
    except OSError:  # reported where it is loaded
        return False
    return family is not None and family.lora_only


def require_pipeline(name: str) -> None:
    """Raises ValueError if a base is a LoRA."""
    if (Path(resolve_model(name)) / LORA).is_file():
        raise ValueError(
            f"base {name!r}: expected a whole pipeline; got a LoRA; fuse it first (pipe.fuse_lora(), "
            "pipe.unload_lora_weights(), save_editor: docs/refl.md)"
        )


def make_trainable(editor: Editor, config: TrainConfig, labels: RewardLabels) -> TrainedModules:
    """Freezes all but the UNet (or its LoRA), the reward embedding and, if requested, the text encoder.

    Raises:
        ValueError: for a LoRA on a base without channels for the source image, a full fine-tuning of a base
            of which only a LoRA is trained, or a learned embedding for it.
    """
    family = editor.family
    pipe = editor.pipe
    denoiser: Any = family.denoiser(pipe)
    require_source_channels(family.takes_source(denoiser), config)
    require_lora(family, config)
    if labels.prompt is not None and labels.prompt.embedding and family.lora_only:
        raise ValueError(
            f"prompt: expected labels that are words for {type(family).__name__}; got a learned embedding; "
            "give the labels words"
        )
    family.add_source_channels(denoiser)
    for module in pipe.components.values():
        if isinstance(module, nn.Module):
            module.requires_grad_(False)
    if config.lora_rank:
        cast_frozen(denoiser, autocast_type(devices.precision_here(config.mixed_precision)))
        add_lora(family, denoiser, config)
    else:
        denoiser.requires_grad_(True)
    denoiser.train()
    if config.gradient_checkpointing:
        denoiser.enable_gradient_checkpointing()

    embedding = None
    if labels.prompt is not None and labels.prompt.embedding:
        embedding = RewardEmbedding(len(labels.prompt.words), family.prompt_dim(denoiser)).to(pipe.device)
    text_encoder = pipe.text_encoder.requires_grad_(True).train() if config.text_encoder_lr else None
    words = None
    if text_encoder is not None and labels.prompt is not None and not labels.prompt.embedding:
        words = _word_embeddings(pipe, labels.prompt)
    trained = _trained_parameters(denoiser, embedding, text_encoder)
    return TrainedModules(denoiser, embedding, text_encoder, words, trained)


def _trained_parameters(*modules: nn.Module | None) -> list[nn.Parameter]:
    """The parameters with a gradient, of those modules that are there."""
    trained = []
    for module in modules:
        if module is not None:
            trained += [parameter for parameter in module.parameters() if parameter.requires_grad]
    return trained


def _word_embeddings(pipe: Any, prompt: RewardPrompt) -> nn.Parameter:
    """The text encoder's token embeddings; from now on only those of the label's words have gradients.

    An editor that has learned to ignore what follows the instruction has almost no gradient towards the
    label; training the words' embeddings at their own learning rate (as in textual inversion)
    gets it started.
    """
    tokens = pipe.tokenizer(list(prompt.words), add_special_tokens=False).input_ids
    embeddings = pipe.text_encoder.get_input_embeddings().weight
    learned = torch.zeros(len(embeddings), 1, device=embeddings.device)
    learned[sorted(set(chain.from_iterable(tokens)))] = 1
    embeddings.register_hook(lambda gradient: gradient * learned)
    return embeddings


def autocast_type(precision: Precision) -> torch.dtype | None:
    """Type of most computations in a step; None without mixed precision."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def cast_frozen(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Casts frozen weights to the type of most computations in a step: autocast caches casts of trained
    weights only, and would cast these again at every call. Weights of norms stay in fp32: autocast on a CPU
    leaves norms as they are, and their input may be in fp32.
    """
    module.to(dtype or torch.float32)
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm | nn.GroupNorm):
            layer.float()


def frozen_parts(pipe: Any) -> list[nn.Module]:
    """The autoencoder and text encoders of a pipeline."""
    parts = []
    for name, module in pipe.components.items():
        if (name == "vae" or name.startswith("text_encoder")) and isinstance(module, nn.Module):
            parts.append(module)
    return parts


def require_source_channels(takes_source: bool, config: TrainConfig) -> None:
    """Raises ValueError if a LoRA would be trained on a text-to-image UNet, whose channels for the source
    image would be neither trained nor saved.
    """
    if config.lora_rank and not takes_source:
        raise ValueError(
            "lora_rank: the base has no channels for a source image, and a LoRA cannot give it any; "
            "leave lora_rank out, or start from an editor"
        )


def require_lora(family: EditFamily, config: TrainConfig) -> None:
    """Raises ValueError if a base of which only a LoRA is trained would be trained whole, or one that cannot
    be quantised would be.
    """
    if config.quantize is not None:
        require_quantizable(family)
    if family.lora_only and not config.lora_rank:
        raise ValueError(
            f"train.lora_rank: expected a rank for {type(family).__name__}, which is trained as a LoRA "
            "alone; got none; set it, such as 16"
        )


def add_lora(family: EditFamily, denoiser: Any, config: TrainConfig) -> None:
    """Adds a LoRA adapter to the attention layers, in fp32; initially it changes nothing."""
    from peft import LoraConfig

    denoiser.add_adapter(
        LoraConfig(
            r=config.lora_rank or 0,
            lora_alpha=config.lora_alpha or config.lora_rank or 0,
            init_lora_weights="gaussian",
            target_modules=list(family.lora_targets),
        )
    )
    cast_training_params(denoiser, torch.float32)


def make_optimizer(config: TrainConfig, models: TrainedModules) -> torch.optim.Optimizer:
    """The optimizer of the trained modules; on a GPU, AdamW's step is a few kernels for all weights."""
    groups = parameter_groups(models.unet, config.lr, config.muon_lr if config.optimizer == "muon" else None)
    if models.embedding is not None:
        groups.append(
            {"params": list(models.embedding.parameters()), "lr": EMBEDDING_LR, "weight_decay": 0.0}
        )
    if models.text_encoder is not None:
        others = [p for p in models.text_encoder.parameters() if p is not models.words]
        groups.append({"params": others, "lr": config.text_encoder_lr})
    if models.words is not None:
        groups.append({"params": [models.words], "lr": EMBEDDING_LR, "weight_decay": 0.0})
    if config.optimizer == "adamw":
        fused = all(p.device.type != "cpu" for p in models.trained) or None
        return AdamW(groups, lr=config.lr, weight_decay=config.weight_decay, fused=fused)
    if config.optimizer == "muon":
        return Muon(groups, lr=config.lr, weight_decay=config.weight_decay)
    try:
        import bitsandbytes  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            "optimizer: adamw8bit needs bitsandbytes; pip install bitsandbytes, or take adamw"
        ) from None
    return bitsandbytes.optim.AdamW8bit(groups, lr=config.lr, weight_decay=config.weight_decay)
