"""Vision-language models: loading, inputs of texts and images, and answers.

A model's own processor works on PIL images, through which no gradient passes. Here it makes the tokens only;
images are resized, cut into tiles and normalised by tensor functions, one for each kind of model, which
agree with the processor (mean difference below 1/255 before normalisation).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor

from rewardedit import devices
from rewardedit.images import MODES, resize
from rewardedit.language.answers import Answer, local_answers
from rewardedit.language.decoding import answer_greedily
from rewardedit.language.texts import LOCK, note_cut
from rewardedit.language.vlm_weights import load_adapter, require_own_weights
from rewardedit.models import pretrained, resolve_model
from rewardedit.models.four_bit import require_bitsandbytes

Bits = Literal["4bit", "8bit"]
# Parts of the models that keep full precision if a language model is quantised: those that encode the image,
# and the output layer.
OTHER_PARTS = ("vision_tower", "vision_model", "visual", "multi_modal_projector", "connector", "lm_head")
Turn = dict[str, Any]  # a chat turn: {"role": "user", "content": [{"type": "image"}, {"type": "text", …}]}


@dataclass
class Vlm:
    """A vision-language model with its processor."""

    model: Any
    processor: Any

    def inputs(
        self, texts: list[str], images: Float[Tensor, "b n 3 h w"], padding_side: str = "left"
    ) -> dict[str, Tensor]:
        """Inputs of the model: the texts' tokens and the images.

        Args:
            texts: b texts with n places for images each, as `prompt` writes them.
            images: RGB in [0, 1]; may carry a gradient.
            padding_side: "left" aligns the beginnings of the answers, "right" those of the texts.

        Raises:
            ValueError: if a text has another number of places for images.
        """
        # In fp32, as a CPU cannot resize in half precision; as in `Preprocess`.
        images = images.to(torch.promote_types(images.dtype, torch.float32))
        b, n, _, h, w = images.shape
        blank = Image.new("RGB", (w, h))
        with LOCK:
            encoded = self.processor(
                images=[[blank] * n for _ in range(b)],
                text=texts,
                padding=True,
                padding_side=padding_side,
                return_tensors="pt",
                add_special_tokens=False,  # the chat's template has them
            )

        pixels = PIXELS[self.model.config.model_type](self.processor, images)
        dtype = self.model.dtype
        inputs = {name: value.to(self.model.device) for name, value in encoded.items()}
        inputs["pixel_values"] = pixels.to(self.model.device, dtype).reshape(encoded["pixel_values"].shape)
        return inputs

    def tokens(self, texts: list[str]) -> Tensor:
        """Tokens (b, n) of texts that follow the images, padded on the right."""
        with LOCK:
            encoded = self.processor.tokenizer(
                texts, add_special_tokens=False, padding=True, padding_side="right", return_tensors="pt"
            )
        return encoded.input_ids.to(self.model.device)

    def note_cut(self, texts: Sequence[str], reader: str) -> None:
        """Notes the texts that the model does not read to their end."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", 2**31)
        note_cut(self.processor.tokenizer, texts, limit, reader)

    def prompt(self, chat: Sequence[Turn], opens_answer: bool = True) -> str:
        """The text of a chat, up to the place of the model's answer.

        Args:
            opens_answer: the text ends with the words that open a turn of the assistant.
        """
        return self.processor.apply_chat_template(list(chat), add_generation_prompt=opens_answer)

    @torch.no_grad()
    def answer(
        self,
        texts: list[str],
        images: Float[Tensor, "b n 3 h w"],
        max_new_tokens: int = 64,
        repetition_penalty: float = 1.0,
    ) -> list[Answer]:
        """The model's greedily decoded answers, regardless of its generation config; an error, which holds
        the text, in place of each answer that was cut off.
        """
        inputs = self.inputs(texts, images)
        made, is_cut = answer_greedily(self.model, inputs, max_new_tokens, repetition_penalty)
        said = self.processor.batch_decode(made, skip_special_tokens=True)
        return local_answers(texts, said, is_cut, max_new_tokens)


def load_vlm(
    name: str,
    *,
    adapter: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
    quantize: str | None = None,
    processor: str | None = None,
) -> Vlm:
    """Loads a LLaVA-NeXT, Idefics3 or Qwen2.5-VL by hub name or folder; "shapes/vlm", a small one, comes with
    the package.

    Args:
        adapter: the folder of a LoRA that was trained on it.
        quantize: stores the language model's weights in 4 (NF4, as in QLoRA) or 8 bits, by bitsandbytes; it
            computes in `dtype`.
        processor: hub name or folder of its processor; None: that of the model.

    Raises:
        ValueError: if there is no such model or dtype, it is of another kind, its weights are not those of
            its class, the adapter does not fit it, or bitsandbytes is not installed.
    """
    dtype = devices.parse_dtype(dtype)
    name = resolve_model(name)
    require_vlm(name)
    options = {} if quantize is None else quantised(quantize, device, dtype)
    model, loaded = load_parts(name, adapter, dtype, processor, **options)
    if quantize is None:  # a quantised model is already on its device
        model.to(device)
    return Vlm(model, loaded)


def load_parts(
    name: str, adapter: str | None, dtype: torch.dtype, processor: str | None = None, **options: Any
) -> tuple[Any, Any]:
    """Loads a vision-language model of any kind, for inference, and its processor.

    Args:
        adapter: hub name or folder of a LoRA.
        processor: hub name or folder of another model, whose processor is taken.
        options: further options of `from_pretrained`; a LoRA is not merged into quantised weights, as it
            would be rounded.

    Raises:
        ValueError: if it cannot be loaded, its weights are not its class's, or the adapter does not fit it.
    """
    from transformers import AutoModelForImageTextToText

    with naming(name):
        loaded: Any = pretrained.load(
            AutoModelForImageTextToText, name, dtype=dtype, output_loading_info=True, **options
        )
        model, report = loaded
        require_own_weights(model, report["missing_keys"], report["unexpected_keys"])
        default = load_processor(resolve_model(processor or name), model.config.model_type)
    if adapter is not None:
        adapted = load_adapter(model, adapter, name)
        is_quantised = "quantization_config" in options
        model = adapted.get_base_model() if is_quantised else adapted.merge_and_unload()
    return model.eval().requires_grad_(False), default


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Turns errors in loading a model into a ValueError that names the model."""
    try:
        yield
    except (OSError, ImportError, ValueError, RuntimeError, SafetensorError) as error:
        if devices.is_out_of_memory(error):
            raise
        line = str(error).strip().partition("\n")[0]
        raise ValueError(f"vision-language model {name!r} cannot be loaded: {line}") from error


def quantised(
    bits: str, device: str | torch.device, dtype: torch.dtype, double: bool = True
) -> dict[str, Any]:
    """Options of `from_pretrained` for a quantised language model.

    Args:
        double: the scales of 4-bit weights are quantised too.

    Raises:
        ValueError: if the bits are not one of `Bits`, or bitsandbytes is not installed.
    """
    from transformers import BitsAndBytesConfig

    if bits not in get_args(Bits):
        raise ValueError(f"quantize: expected {' or '.join(get_args(Bits))}; got {bits!r}")

    require_bitsandbytes()
    four: dict[str, Any] = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": double,
        "bnb_4bit_compute_dtype": dtype,
    }
    chosen = four if bits == "4bit" else {"load_in_8bit": True}
    config = BitsAndBytesConfig(**chosen, llm_int8_skip_modules=[f".*{name}" for name in OTHER_PARTS])
    place = torch.device(device)
    if place.type == "cuda" and place.index is None:
        # accelerate trains it on several GPUs only if each process names its own
        place = torch.device("cuda", torch.cuda.current_device())
    return {"quantization_config": config, "device_map": {"": place}}


def require_vlm(name: str) -> str:
    """The kind of a vision-language model; no weights are read.

    Raises:
        ValueError: if there is no model of that name, or its kind is not one of `PIXELS`.
    """
    from transformers import AutoConfig

    with naming(name):
        kind = pretrained.load(AutoConfig, resolve_model(name)).model_type
    if kind not in PIXELS:
        raise ValueError(f"{name} is a {kind}; expected one of {', '.join(PIXELS)}")
    return kind


def reserved_tokens(vlm: Vlm) -> list[str]:
    """Special tokens of the model, such as the place of an image, longest first: instructions must not hold
    them.
    """
    return special_tokens(vlm.processor)


def special_tokens(processor: Any) -> list[str]:
    """Special tokens of a processor's tokenizer, longest first."""
    tokenizer = processor.tokenizer
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(added | set(tokenizer.all_special_tokens), key=lambda token: (-len(token), token))


def without(reserved: Sequence[str], text: str) -> str:
    """The text without any of the reserved tokens."""
    for token in reserved:
        text = text.replace(token, " ")
    return text


def load_processor(name: str, kind: str, subfolder: str = "") -> Any:
    """The processor of a kind of model; for Qwen, and others with the same parts, without its video
    processor, which needs torchvision.

    Args:
        subfolder: of a pipeline's folder.
    """
    from transformers import CONFIG_MAPPING, PROCESSOR_MAPPING, AutoProcessor

    parts = ["image_processor", "tokenizer"]
    kind_of_processor = PROCESSOR_MAPPING.get(CONFIG_MAPPING[kind], None)
    if kind_of_processor is None or kind_of_processor.get_attributes() != [*parts, "video_processor"]:
        return pretrained.load(AutoProcessor, name, backend="pil", subfolder=subfolder)
    members = {"get_attributes": classmethod(lambda cls: parts), "__module__": kind_of_processor.__module__}
    images_alone: Any = type(kind_of_processor.__name__, (kind_of_processor,), members)
    processor = pretrained.load(images_alone, name, backend="pil", subfolder=subfolder)
    processor.chat_template = processor.chat_template or processor.tokenizer.chat_template
    return processor


def llava_next_pixels(processor: Any, images: Float[Tensor, "b n 3 h w"]) -> Float[Tensor, "m p 3 s s"]:
    """m = b · n images as p tiles each: the whole image, stretched, then square tiles of the image scaled to
    fit the best of the grids, with black around it.
    """
    from transformers.image_processing_utils import select_best_resolution

    settings = processor.image_processor
    mode = _mode(settings)
    side = settings.crop_size["height"]
    flat = images.flatten(0, 1)
    h, w = flat.shape[-2:]
    grid_h, grid_w = select_best_resolution((h, w), settings.image_grid_pinpoints)
    fits_h, fits_w = _fitting(h, w, grid_h, grid_w)
    top, left = (grid_h - fits_h) // 2, (grid_w - fits_w) // 2
    padding = (left, grid_w - fits_w - left, top, grid_h - fits_h - top)
    large = F.pad(resize(flat, (fits_h, fits_w), mode), padding)
    tiles = torch.cat([resize(flat, (side, side), mode)[:, None], _tiles(large, side)], dim=1)
    return _normalised(settings, tiles)


def idefics3_pixels(processor: Any, images: Float[Tensor, "b n 3 h w"]) -> Float[Tensor, "b p 3 s s"]:
    """Each row's n images as p tiles: squares of the image, stretched to whole tiles, then all of it."""
    settings = processor.image_processor
    mode = _mode(settings)
    side = settings.max_image_size["longest_edge"]
    flat = images.flatten(0, 1)
    flat = resize(flat, _longest_edge(*flat.shape[-2:], settings.size["longest_edge"]), mode)
    if settings.do_image_splitting:
        flat = resize(flat, _whole_tiles(*flat.shape[-2:], side), mode)
        whole = resize(flat, (side, side), mode)[:, None]
        split = max(flat.shape[-2:]) > side
        tiles = torch.cat([_tiles(flat, side), whole], dim=1) if split else flat[:, None]
    else:
        tiles = resize(flat, (side, side), mode)[:, None]
    return _normalised(settings, tiles).unflatten(0, images.shape[:2]).flatten(1, 2)


def qwen_pixels(processor: Any, images: Float[Tensor, "b n 3 h w"]) -> Float[Tensor, "patches d"]:
    """Patches of all images, each twice in time; the patches that are merged into one token are adjacent."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    settings = processor.image_processor
    patch, merge, time = settings.patch_size, settings.merge_size, settings.temporal_patch_size
    flat = images.flatten(0, 1)
    limits = settings.size["shortest_edge"], settings.size["longest_edge"]
    h, w = smart_resize(*flat.shape[-2:], patch * merge, *limits)
    flat = _normalised(settings, resize(flat, (h, w), _mode(settings)))
    blocks = flat.reshape(len(flat), 3, h // patch // merge, merge, patch, w // patch // merge, merge, patch)
    ordered = blocks.permute(0, 2, 5, 3, 6, 1, 4, 7)  # image, blocks, patches in a block, channel, pixels
    twice = ordered.unsqueeze(-3).expand(*ordered.shape[:-2], time, patch, patch)
    return twice.reshape(-1, 3 * time * patch * patch)


PIXELS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "llava_next": llava_next_pixels,
    "idefics3": idefics3_pixels,
    "qwen2_5_vl": qwen_pixels,
}


def _mode(settings: Any) -> str:
    """The interpolation mode of an image processor.

    Raises:
        ValueError: if the mode has no differentiable form here.
    """
    if settings.resample not in MODES:
        raise ValueError(f"expected an image processor that resizes by {MODES}; got {settings.resample}")
    return MODES[settings.resample]


def _normalised(settings: Any, image: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b 3 h w"]:
    mean = torch.tensor(settings.image_mean).to(image)[:, None, None]
    std = torch.tensor(settings.image_std).to(image)[:, None, None]
    return (image - mean) / std


def _tiles(image: Float[Tensor, "b 3 h w"], side: int) -> Float[Tensor, "b p 3 side side"]:
    """Squares from left to right, row by row."""
    split = image.unflatten(-1, (-1, side)).unflatten(-3, (-1, side))  # b 3 rows side columns side
    return split.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def _fitting(h: int, w: int, most_h: int, most_w: int) -> tuple[int, int]:
    """The largest shape of the same aspect ratio within another."""
    if most_w / w < most_h / h:
        return min(-(-h * most_w // w), most_h), most_w
    return most_h, min(-(-w * most_h // h), most_w)


def _longest_edge(h: int, w: int, longest: int) -> tuple[int, int]:
    """The shape with that longest side; the other side is even, as in Idefics3."""
    if w >= h:
        other = int(longest / (w / h))
        return max(other + other % 2, 1), longest
    other = int(longest * (w / h))
    return longest, max(other + other % 2, 1)


def _whole_tiles(h: int, w: int, side: int) -> tuple[int, int]:
    """The shape of whole tiles that holds another; the longer side is rounded up first."""
    aspect = w / h
    if w >= h:
        w = -(-w // side) * side
        return -(-int(w / aspect) // side) * side, w
    h = -(-h // side) * side
    return h, -(-int(h * aspect) // side) * side
