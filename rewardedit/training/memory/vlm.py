"""Memory and operations of supervised fine-tuning of a vision-language model, estimated on `meta`.

The vision tower is frozen and no gradient passes through it, so that the language model's step decides.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from rewardedit.training.memory.peak import FULL, OVERHEAD, peak_memory
from rewardedit.training.memory.stages import MOMENTS
from rewardedit.training.vlm_lora import linear_layers

ANSWER = 128  # tokens of a long answer


def sft_step(model: Any, rank: int, rows: int, tokens: int, checkpointing: bool = True) -> tuple[int, int]:
    """Bytes of a step that trains a LoRA on a micro-batch, at most, and its operations.

    Args:
        model: the whole model, on `meta`, in the type of its frozen weights; it is wrapped by PEFT.
        tokens: of a prompt.
    """
    from peft import LoraConfig, get_peft_model

    frozen = sum(p.numel() * p.element_size() for p in model.parameters())
    lora = LoraConfig(r=rank, target_modules=linear_layers(model), task_type="CAUSAL_LM")
    with torch.device("meta"):
        adapted = get_peft_model(model, lora)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.empty_like(p)
    decoder = model.model.get_decoder().train()
    if checkpointing:
        decoder.gradient_checkpointing_enable({"use_reentrant": False})
    width = model.config.get_text_config().hidden_size
    states = torch.empty(rows, tokens + ANSWER, width, device="meta", dtype=model.dtype, requires_grad=True)

    def step() -> Tensor:
        hidden = decoder(inputs_embeds=states, use_cache=False).last_hidden_state[:, -ANSWER:]
        return model.get_output_embeddings()(hidden).float().logsumexp(2).sum()

    learned = sum(p.numel() for p in trained)
    needed = frozen + (2 * FULL + MOMENTS["adamw"]) * learned + peak_memory(step, model.dtype).peak + OVERHEAD
    # Operations are counted apart, as the counter takes attention to pieces, which need more memory.
    with FlopCounterMode(display=False) as counter:
        peak_memory(step, model.dtype)
    return needed, counter.get_total_flops()
