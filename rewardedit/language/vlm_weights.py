"""Whether a checkpoint's weights, or an adapter's, are those of the model that they are loaded into.

transformers and PEFT go on where they are not: what is missing is random, what is unexpected is left out, and
the answers are another model's.
"""

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from rewardedit import pretrained

# Weights by which a trained judge gives its score, by what they are called in published ones.
REWARD_HEAD = re.compile(r"(^|\.)(rm_heads?|reward_head|score|score_head|v_head|value_head)\.")


def require_own_weights(model: Any, missing: set[str], unexpected: set[str]) -> None:
    """Raises ValueError where a checkpoint lacks weights of its model, for which transformers takes random
    ones, or has others, which it leaves out: the answers would be another model's.
    """
    kind = type(model).__name__
    heads = {key for key in unexpected if REWARD_HEAD.search(key)}
    if heads:
        raise ValueError(
            f"it has a reward head that {kind} does not have ({_few(heads)}), without which its scores are "
            "another model's; use its authors' code"
        )
    if unexpected:
        raise ValueError(
            f"its checkpoint has weights that {kind} does not have ({_few(unexpected)}), without which its "
            "scores are another model's"
        )
    if missing:
        raise ValueError(f"its checkpoint lacks weights of {kind} ({_few(missing)}), which would be random")


def _few(keys: Collection[str]) -> str:
    return ", ".join(sorted(keys)[:3]) + (f", … ({len(keys)} in all)" if len(keys) > 3 else "")


def load_adapter(model: Any, adapter: str, name: str) -> Any:
    """A model as PEFT wraps it, with a LoRA that was trained on it. Where both are named as on the hub, and
    the LoRA names another model, a warning says so: weights of one shape fit all models of it.

    Args:
        adapter: hub name or folder.
        name: of the model, for errors.

    Raises:
        ValueError: where there is no such adapter, or it is of another model: PEFT goes on with weights that
            it has just made, which change nothing, and leaves out those that it has no place for.
    """
    from peft import PeftConfig, PeftModel

    config = pretrained.load(PeftConfig, adapter)
    if config.peft_type != "LORA":
        raise ValueError(f"adapter {adapter!r}: expected a LoRA; got {str(config.peft_type)[:80]}")
    config.inference_mode = True
    base = config.base_model_name_or_path or name
    if base != name and all(one.count("/") == 1 and not Path(one).exists() for one in (base, name)):
        warnings.warn(f"adapter {adapter!r} was trained on {base}, and is laid over {name}", stacklevel=2)
    try:
        with pretrained.reading(adapter):
            adapted = PeftModel(model, config)
            found = adapted.load_adapter(adapter, "default", key_mapping=older_names(model))
        wrong = [*found.missing_keys, *found.unexpected_keys]
        if wrong:
            raise ValueError(f"one has weights that the other has not: {_few(wrong)}")
    except torch.cuda.OutOfMemoryError:
        raise
    except (ValueError, RuntimeError) as error:  # the latter where a weight's shape is another
        raise ValueError(
            f"adapter {adapter!r} does not fit {name!r}: {str(error.__cause__ or error)[:300]}"
        ) from error
    return adapted


def older_names(model: Any) -> dict[str, str] | None:
    """Patterns of what weights were called in earlier releases of transformers, and what they are called now.

    transformers renames a checkpoint's weights itself. Of an adapter's PEFT renames those that transformers
    lists by the kind of model, and not those that it lists by class, as Qwen2.5-VL's.
    """
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    renamed = get_checkpoint_conversion_mapping(type(model).__name__) or []
    return {old: one.target_patterns[0] for one in renamed for old in one.source_patterns} or None
