"""Saving of adapters, and checks that loaded weights fit the model that they are loaded into.

transformers and PEFT continue if they do not: missing weights are random, unexpected ones are left out, and
the answers are another model's.
"""

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rewardedit import devices
from rewardedit.models import pretrained

# Names of a trained judge's score head in published checkpoints.
REWARD_HEAD = re.compile(r"(^|\.)(rm_heads?|reward_head|score|score_head|v_head|value_head)\.")


def require_own_weights(model: Any, missing: set[str], unexpected: set[str]) -> None:
    """Raises ValueError if a checkpoint lacks weights of its model, which transformers initialises randomly,
    or has others, which it leaves out: the answers would be another model's.
    """
    kind = type(model).__name__
    heads = set(filter(REWARD_HEAD.search, unexpected))
    if heads:
        raise ValueError(
            f"it has a reward head that {kind} does not have ({_few(heads)}), without which its scores would "
            "be wrong; use its authors' code"
        )
    if unexpected:
        raise ValueError(
            f"its checkpoint has weights that {kind} does not have ({_few(unexpected)}), without which its "
            "scores would be wrong"
        )
    if missing:
        raise ValueError(f"its checkpoint lacks weights of {kind} ({_few(missing)}), which would be random")


def _few(keys: Collection[str]) -> str:
    return ", ".join(sorted(keys)[:3]) + (f", … ({len(keys)} in all)" if len(keys) > 3 else "")


def load_adapter(model: Any, adapter: str, name: str, trainable: bool = False) -> Any:
    """Returns the model wrapped by PEFT, with a LoRA that was trained on it. Warns if both have hub names and
    the LoRA names another model: its weights fit every model of the same shape.

    Args:
        adapter: hub name or folder.
        name: the model's name, for errors.
        trainable: whether its weights are to be trained further.

    Raises:
        ValueError: if there is no such adapter, or it belongs to another model: PEFT would continue with
            newly made weights, which change nothing, and leave out those that it has no place for.
    """
    from peft import PeftConfig, PeftModel

    config = pretrained.load(PeftConfig, adapter)
    if config.peft_type != "LORA":
        raise ValueError(f"adapter {adapter!r}: expected a LoRA; got {str(config.peft_type)[:80]}")

    config.inference_mode = not trainable
    base = config.base_model_name_or_path or name
    if base != name and _may_be_on_the_hub(base) and _may_be_on_the_hub(name):
        warnings.warn(f"adapter {adapter!r} was trained on {base} and is applied to {name}", stacklevel=2)
    try:
        with pretrained.reading(adapter):
            adapted = PeftModel(model, config)
            names = older_names(model)
            report = adapted.load_adapter(adapter, "default", is_trainable=trainable, key_mapping=names)
        wrong = [*report.missing_keys, *report.unexpected_keys]
        if wrong:
            raise ValueError(f"their weights differ: {_few(wrong)}")
    except (ValueError, RuntimeError) as error:  # the latter if the shape of a weight differs
        if devices.is_out_of_memory(error):
            raise
        raise ValueError(
            f"adapter {adapter!r} does not fit {name!r}: {str(error.__cause__ or error)[:300]}"
        ) from error

    return adapted


def save_adapter(adapted: Any, folder: Path) -> None:
    """Saves the weights and settings of a LoRA on a model that PEFT has wrapped, without PEFT's model card:
    an empty form that names paths of this machine.
    """
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def _may_be_on_the_hub(name: str) -> bool:
    return name.count("/") == 1 and not Path(name).exists()


def older_names(model: Any) -> dict[str, str] | None:
    """Patterns of weight names in earlier releases of transformers, each with the present name.

    transformers itself renames the weights of a checkpoint. For an adapter, PEFT renames those that
    transformers lists by the kind of model, and not those that it lists by class, such as Qwen2.5-VL's.
    """
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    renamed = get_checkpoint_conversion_mapping(type(model).__name__) or []
    names: dict[str, str] = {}
    for one in renamed:
        names |= dict.fromkeys(one.source_patterns, one.target_patterns[0])
    return names or None
