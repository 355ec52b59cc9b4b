"""The vision-language models behind `VlmJudge`: loading, which are refused, and what tells one from another.

Trained judges that others published, by what their papers, code and issues say; none of their weights could
be loaded where this was written, so how they grade by our prompts is not verified:

EditReward (TIGER-Lab; Qwen2.5-VL-7B, MiMo-VL-7B): source, edited image and instruction; two numbers for an
edit, of which the first is the reward, unbounded and often negative, higher is better, and the second the
logarithm of its uncertainty. Refused: both come from heads of its own.

EditScore (Qwen2.5-VL 7B to 72B, Qwen3-VL 4B and 8B): LoRAs that write reasons and VIEScore's grades from 0 to
25, higher is better. Taken as `adapter`, on the base that each names; read by our prompts from 0 to 10.

SpatialReward-8B (Qwen3-VL-8B): writes the boxes of the edit, reasons and grades from 0 to 25, weighted.
Refused: what it was trained to write is not a grade on a line.

UnifiedReward (CodeGoat24): generates grades as text on the scale that its prompt names, higher is better;
for edits the releases called Edit, from 0 to 25. Those on Qwen load as plain models; those on LLaVA-OneVision
are in its first code's format, and refused.
"""

import hashlib
import json
import re

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import to_pil
from rewardedit.scorers.vlm import PIXELS, Vlm, fitting_adapter, load_vlm

SAMPLED = 64  # values of each weight that `model_hash` reads
# Published checkpoints that are no plain vision-language models, by the last part of their names.
REFUSED = {
    r"editreward-": (
        "its score comes from heads of its own, which a plain vision-language model has not; "
        "use its authors' code"
    ),
    r"editscore-": (
        "it is a LoRA; give its base as checkpoint, e.g. Qwen/Qwen2.5-VL-7B-Instruct, and it as adapter"
    ),
    r"spatialreward-": (
        "it was trained to write boxes and a list of grades in JSON, which this judge does not ask for; "
        "use its authors' code"
    ),
    r"unifiedreward-(think-)?(0\.5b|7b)": (
        "it is in the format of LLaVA-OneVision's first code; take a UnifiedReward on Qwen, "
        "e.g. CodeGoat24/UnifiedReward-2.0-qwen-7b"
    ),
}


class ProcessorVlm(Vlm):
    """A vision-language model of a kind whose preprocessing we do not own: its processor works on PIL images,
    and no gradient passes.
    """

    def inputs(self, texts: list[str], images: Float[Tensor, "b n 3 h w"]) -> dict[str, Tensor]:
        found = self.processor(
            images=[[to_pil(image) for image in row] for row in images],
            text=texts,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            add_special_tokens=False,  # the chat's template has them
        )
        inputs = {name: value.to(self.model.device) for name, value in found.items()}
        dtype = self.model.dtype
        return {name: v.to(dtype) if v.is_floating_point() else v for name, v in inputs.items()}


def load_judge(name: str, adapter: str | None = None, dtype: torch.dtype = torch.float32) -> Vlm:
    """A vision-language model by hub name or folder; of LLaVA-NeXT, Idefics3 and Qwen2.5-VL the images keep
    their gradient, of all others not.

    Args:
        adapter: hub name or folder of a LoRA that was trained on it.

    Raises:
        ValueError: where there is no such model, it is one of `REFUSED`, or the adapter is another model's.
    """
    last = name.rstrip("/").rpartition("/")[2].lower()
    for pattern, reason in REFUSED.items():
        if re.match(pattern, last):
            raise ValueError(f"vision-language model {name!r} cannot be a vlm_judge: {reason}")
    with fitting_adapter(adapter, name):
        return _load(name, adapter, dtype)


def _load(name: str, adapter: str | None, dtype: torch.dtype) -> Vlm:
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    try:
        kind = AutoConfig.from_pretrained(name).model_type
        if kind not in PIXELS:
            model = AutoModelForImageTextToText.from_pretrained(name, dtype=dtype)
            processor = AutoProcessor.from_pretrained(name, backend="pil")
    except (OSError, ImportError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise ValueError(f"vision-language model {name!r} cannot be loaded: {line}") from error
    if kind in PIXELS:
        return load_vlm(name, adapter=adapter, dtype=dtype)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    return ProcessorVlm(model.eval().requires_grad_(False), processor)


def model_hash(vlm: Vlm) -> str:
    """SHA-256 of what a model is: its configuration, image processing, way to decode and chat template, and
    of each weight its name, shape, type and 64 values.

    Where it was loaded from does not count; an adapter that was merged does.
    """
    model = vlm.model
    config = {key: v for key, v in model.config.to_dict().items() if key not in _ELSEWHERE}
    decoding = {key: v for key, v in model.generation_config.to_dict().items() if key not in _ELSEWHERE}
    images = vlm.processor.image_processor.to_dict()
    known = [config, decoding, images, vlm.processor.chat_template or vlm.processor.tokenizer.chat_template]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    for name, weight in model.named_parameters():
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED]
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(sample.float().cpu().numpy().tobytes())
    return digest.hexdigest()


_ELSEWHERE = ("_name_or_path", "transformers_version")
