"""Editors without weights, for estimates of the memory and time that a training of them needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import diffusers
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig

from rewardedit.diffusion.families import Conditioning, EditFamily, require_family
from rewardedit.diffusion.quantized import largest_layer, saved_bytes
from rewardedit.models import pretrained, resolve_model
from rewardedit.models.four_bit import Bits
from rewardedit.training.memory.peak import FULL, HALF, parameters, peak_memory
from rewardedit.training.trainable import autocast_type, require_pipeline


@dataclass(frozen=True)
class Blueprint:
    """An editor without weights, on `meta`, and the side of the images to edit."""

    family: EditFamily
    unet: Any
    vae: Any
    text_encoders: Sequence[nn.Module]
    size: int
    takes_source: bool  # true if the UNet had channels for a source image before any were added

    @classmethod
    def make(
        cls, family: EditFamily, denoiser: Any, vae: Any, text_encoders: Sequence[nn.Module], size: int
    ) -> "Blueprint":
        """An editor of these parts, which are on `meta`; in bf16 where the family is loaded so on a GPU."""
        takes_source = family.takes_source(denoiser)
        with torch.device("meta"):
            family.add_source_channels(denoiser)
        for module in (denoiser, vae, *text_encoders):
            module.requires_grad_(False)
            if family.lora_only:
                module.to(torch.bfloat16)
        return cls(family, denoiser, vae, text_encoders, size, takes_source)

    @property
    def number(self) -> int:
        """Bytes of a number of its frozen weights."""
        return HALF if self.family.lora_only else FULL

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The parts that may be quantised, by their names in the pipeline."""
        names = ("text_encoder", "text_encoder_2", "text_encoder_3")
        return {self.family.denoiser_name: self.unet, **dict(zip(names, self.text_encoders, strict=False))}

    def bytes(self, number: int | None = None, quantize: Bits | None = None) -> int:
        """Bytes of all weights, with `number` bytes each; None: as they are loaded."""
        number = number or self.number
        total = sum(map(parameters, (self.unet, self.vae, *self.text_encoders))) * number
        return total if quantize is None else total - saved_bytes(self.family, self.parts, number)

    def saved_of_denoiser(self, number: int) -> int:
        """Bytes that 4 bits save of the denoiser, whose frozen weights have `number` bytes each."""
        return saved_bytes(self.family, {self.family.denoiser_name: self.unet}, number)

    def text_bytes(self, quantize: Bits | None = None) -> int:
        """Bytes of the text encoders."""
        total = sum(map(parameters, self.text_encoders)) * self.number
        parts = {name: module for name, module in self.parts.items() if module is not self.unet}
        return total if quantize is None else total - saved_bytes(self.family, parts, self.number)

    @property
    def restored(self) -> int:
        """Bytes of the largest layer of those in 4 bits while it computes."""
        return HALF * largest_layer(self.family, self.parts)

    def latents(self, batch: int) -> Tensor:
        shape = self.family.latent_shape(self.unet, self.vae, self.size)
        return torch.empty(batch, *shape, device="meta")

    def images(self, batch: int) -> Tensor:
        return torch.empty(batch, 3, self.size, self.size, device="meta")

    def conditioning(self, batch: int) -> Conditioning:
        return self.family.blank_conditioning(self.unet, self.latents(batch))

    def times(self, batch: int) -> Tensor:
        return torch.zeros(batch, dtype=torch.long, device="meta")

    def predict(self, unet: Any, batch: int = 1) -> Tensor:
        latents = self.latents(batch).to(unet.dtype)
        cond = self.family.blank_conditioning(self.unet, latents)
        return self.family.predict(unet, latents, self.times(batch), cond)

    @cached_property
    def encoded(self) -> int:
        """Bytes that encoding an image needs, in the type of the weights."""
        image = self.images(1).to(self.vae.dtype)
        if self.vae.encoder.conv_in.weight.ndim == 5:  # of a video's autoencoder
            image = image.unsqueeze(2)
        with torch.no_grad():
            return peak_memory(lambda: self.vae.encode(image).latent_dist.mode()).peak

    @cached_property
    def sampled(self) -> int:
        """Bytes that sampling an edit needs, in the type of the weights: the UNet's calls or decoding,
        whichever is more.
        """
        half = autocast_type("bf16") if self.family.lora_only else None
        with torch.no_grad():
            called = peak_memory(lambda: self.predict(self.unet), half).peak
            decoded = peak_memory(lambda: self.family.decode(self.vae, self.latents(1)), half).peak
        return max(self.family.guided_rows * called, decoded)


def load_blueprint(name: str, size: int) -> Blueprint:
    """Loads an editor without weights, from the configurations in its folder.

    Raises:
        ValueError: if there is no such pipeline, or it is a LoRA.
    """
    family = load_family(name)
    index = pipeline_config(name)
    text_encoders = []
    with torch.device("meta"):
        denoiser, vae = (
            _without_weights(name, index, component) for component in (family.denoiser_name, "vae")
        )
        for component in sorted(index):
            if component.startswith("text_encoder") and index[component][0] is not None:
                config = pretrained.load(AutoConfig, resolve_model(name), subfolder=component)
                text_encoders.append(_class_of(index, component, transformers.PreTrainedModel)(config))
    return Blueprint.make(family, denoiser, vae, text_encoders, size)


def _without_weights(name: str, index: dict[str, Any], component: str) -> Any:
    """A part of a pipeline that is diffusers' own."""
    kind = _class_of(index, component, diffusers.ModelMixin)
    return kind.from_config(sub_config(kind, name, component))


def _class_of(index: dict[str, Any], component: str, base: type) -> Any:
    """The class of a part, by the pipeline's index file.

    Raises:
        ValueError: if it is no model of that library.
    """
    library = transformers if issubclass(base, transformers.PreTrainedModel) else diffusers
    name = str(index.get(component, (None, None))[1])
    kind = getattr(library, name, None)
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise ValueError(
            f"{component}: expected a model of {library.__name__}; got {name[:80]}; use a stock pipeline"
        )
    return kind


def pipeline_config(name: str) -> dict[str, Any]:
    """Index of a pipeline: library and class of each part, by name.

    Raises:
        ValueError: if there is no such pipeline.
    """
    try:
        return pretrained.load_index(resolve_model(name))
    except OSError as error:
        raise ValueError(
            f"editor {name!r} is not there ({str(error).splitlines()[0]}); give a folder, or a hub name "
            "online"
        ) from error


def load_family(name: str) -> EditFamily:
    """Family of a base editor, found without loading its weights.

    Raises:
        ValueError: if there is no such pipeline, it is a LoRA, or it cannot be an editor.
    """
    require_pipeline(name)
    return require_family(name, pipeline_config(name))


def load_scheduler(name: str) -> Any:
    """Scheduler of a base editor, loaded without its weights.

    Raises:
        ValueError: if there is no such pipeline, or it is a LoRA.
    """
    require_pipeline(name)
    kind = getattr(diffusers, pipeline_config(name)["scheduler"][1])
    return kind.from_config(sub_config(kind, name, "scheduler"))


def sub_config(kind: Any, name: str, subfolder: str) -> Any:
    """Configuration of a part of a pipeline, for a class of diffusers.

    Raises:
        ValueError: if the pipeline has no such part.
    """
    try:
        with pretrained.reading(name):
            return kind.load_config(resolve_model(name), subfolder=subfolder)
    except OSError as error:
        raise ValueError(f"editor {name!r} has no {subfolder} ({str(error).splitlines()[0]})") from error
