"""The vision-language models behind `VlmJudge`: how they are loaded, and which are refused.

Notes on published judges follow their papers, code and issues; none of their weights could be loaded when
this was written, so their grades with our prompts are unverified. All see the source, the edited image and
the instruction, and for all a higher score is better. Those that are loaded are asked our own questions, and
our digits or our line with a grade are read, from 0 to 10. Their own answer format, lists of grades from 0 to
25 in JSON, is not read: the result is not the score of their papers.

EditReward (TIGER-Lab; Qwen2.5-VL-7B, MiMo-VL-7B): two numbers for an edit; the first is the reward,
unbounded and often negative, the second the logarithm of its uncertainty. Refused: both come from heads of
its own. Under another name it is recognised by the weights of these heads (`require_own_weights`).

EditScore (Qwen2.5-VL 7B to 72B, Qwen3-VL 4B and 8B): LoRAs that write reasons and VIEScore's grades, which
its code combines as `VlmJudge` does, from 0 to 10. Loaded as `adapter`, on the base that each names.

SpatialReward-8B (Qwen3-VL-8B): writes the boxes of the edit, reasons that point at them, and VIEScore's
grades, which its code weights into a score from 0 to 1. Refused: its grades rest on the boxes, which none of
our questions lets it write.

UnifiedReward (CodeGoat24; Qwen2.5-VL, Qwen3-VL, Qwen3.5; some LLaVA-OneVision): writes grades on the scale
that its prompt names; the releases for edits, called Edit, write reasons and VIEScore's grades. Those on Qwen
load as plain models; those on LLaVA-OneVision are in the format of its first code, and refused.
"""

import re

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit import devices
from rewardedit.images import to_pil
from rewardedit.language.texts import LOCK
from rewardedit.language.vlm import PIXELS, Vlm, load_parts, quantised
from rewardedit.models import resolve_model

# Published checkpoints that are not plain vision-language models, by the last part of their names.
REFUSED = {
    r"editreward-": (
        "its score comes from heads of its own, which a plain vision-language model has not; "
        "use its authors' code"
    ),
    r"editscore-": (
        "it is a LoRA; give its base as checkpoint, e.g. Qwen/Qwen2.5-VL-7B-Instruct, and it as adapter"
    ),
    r"spatialreward-": (
        "it was trained to write the edit's boxes and a list of grades that rests on them, and this judge "
        "asks for no boxes; use its authors' code"
    ),
    r"unifiedreward-(think-)?(0\.5b|7b)": (
        "it is in the format of LLaVA-OneVision's first code; use a UnifiedReward on Qwen, "
        "e.g. CodeGoat24/UnifiedReward-2.0-qwen-7b"
    ),
}


class ProcessorVlm(Vlm):
    """A vision-language model whose preprocessing is not reimplemented here: its processor works on PIL
    images, and no gradient passes.
    """

    def inputs(self, texts: list[str], images: Float[Tensor, "b n 3 h w"]) -> dict[str, Tensor]:
        shown = [list(map(to_pil, row)) for row in images]
        with LOCK:
            encoded = self.processor(
                images=shown,
                text=texts,
                padding=True,
                padding_side="left",
                return_tensors="pt",
                add_special_tokens=False,  # the chat's template has them
            )
        inputs = {}
        for name, value in encoded.items():
            dtype = self.model.dtype if value.is_floating_point() else value.dtype
            inputs[name] = value.to(self.model.device, dtype)
        return inputs


def load_judge(
    name: str,
    adapter: str | None = None,
    dtype: torch.dtype | str | None = None,
    quantize: str | None = None,
) -> Vlm:
    """Loads a vision-language model by hub name, folder or name of a packaged one; with LLaVA-NeXT, Idefics3
    and Qwen2.5-VL the gradient reaches the images, with all others it does not.

    Args:
        adapter: hub name or folder of a LoRA that was trained on it.
        dtype: None: that of `devices.llm_dtype`.
        quantize: "4bit" or "8bit", as for `load_vlm`; the weights are then on the default device.

    Raises:
        ValueError: if there is no such model, it is one of `REFUSED`, its weights are not those of its class,
            the adapter is another model's, or it cannot be quantised.
    """
    last = name.rstrip("/").rpartition("/")[2].lower()
    for pattern, reason in REFUSED.items():
        if re.match(pattern, last):
            raise ValueError(f"vision-language model {name!r} cannot be a vlm_judge: {reason}")
    weights = devices.llm_dtype(dtype)
    options = {} if quantize is None else quantised(quantize, devices.default_device(), weights)
    model, processor = load_parts(resolve_model(name), adapter, weights, **options)
    ours = model.config.model_type in PIXELS
    return Vlm(model, processor) if ours else ProcessorVlm(model, processor)
