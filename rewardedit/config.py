"""Strict recipes: YAML and `key=value` words into frozen dataclasses,
with the nearest name for a wrong one.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rewardedit.nearest import hint, nearest, question
from rewardedit.scorer_spec import as_mapping

T = TypeVar("T")

# Whole numbers that may be 0, beside those that are by default: each says none of what it counts.
FROM_ZERO = ("seed", "examples", "grad_steps", "lr_warmup_steps", "stop_before_end", "validation_rows")

# Settings by the names that other libraries give them; a group has at most one of each.
ALIASES = {
    "learning_rate": ("lr",),
    "wd": ("weight_decay",),
    "grad_clip": ("max_grad_norm",),
    "gradient_clip_val": ("max_grad_norm",),
    "epochs": ("max_steps",),
    "num_train_epochs": ("epochs",),
    "steps": ("max_steps", "num_inference_steps"),
    "per_device_train_batch_size": ("micro_batch_size",),
    "gradient_accumulation_steps": ("micro_batch_size",),
    "rank": ("lora_rank",),
    "lora_r": ("lora_rank",),
    "r": ("lora_rank",),
    "alpha": ("lora_alpha",),
    "ema_decay": ("ema",),
    "use_ema": ("ema",),
    "snr_gamma": ("min_snr",),
    "bf16": ("mixed_precision",),
    "fp16": ("mixed_precision",),
    "save_steps": ("checkpoint_every",),
    "checkpointing_steps": ("checkpoint_every",),
    "eval_steps": ("validate_every",),
    "validation_steps": ("validate_every",),
    "logging_steps": ("log_every",),
    "report_to": ("tracker",),
    "cfg": ("guidance_scale",),
    "cfg_scale": ("guidance_scale",),
    "image_cfg_scale": ("image_guidance_scale",),
    "resolution": ("size",),
    "image_size": ("size",),
    "model": ("base",),
    "base_model": ("base", "model"),
    "pretrained_model_name_or_path": ("base", "model"),
}


class _Loader(yaml.SafeLoader):
    """YAML where `1e-4` is a number, as everyone who writes a learning rate means it, and `no`, `1:30` and
    `2026-11-26` are texts, as in YAML 1.2.
    """


_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_TIME = "tag:yaml.org,2002:timestamp"


def _kept_resolvers() -> dict[str, list[tuple[str, re.Pattern]]]:
    """PyYAML's rules for unquoted values by first character, without those of these four types."""
    kept = {}
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items():
        kept[first] = [rule for rule in rules if rule[0] not in (_BOOL, _INT, _FLOAT, _TIME)]
    return kept


_Loader.yaml_implicit_resolvers = _kept_resolvers()
_Loader.add_implicit_resolver(_BOOL, re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(_INT, re.compile(r"^[-+]?(0|[1-9]\d*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.inf$|^\.nan$"),
    list("-+0123456789."),
)


def parse_value(text: str) -> Any:
    """One YAML value: `1e-4` a float, `3` an int, `[a, b]` a list, `null` None."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{text!r}: not a value that YAML can read; a text with braces or colons needs quotes"
        ) from error


def load_yaml(path: str | Path) -> dict[str, Any]:
    """A recipe file as a dictionary.

    Raises:
        ValueError: where it is missing, no YAML, or no mapping.
    """
    try:
        values = yaml.load(Path(path).read_text(), _Loader)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML ({str(error).splitlines()[-1].strip()})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected keys and values; got {type(values).__name__}")
    return values


def override(values: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A copy of `values` with `a.b=value` words laid over it.

    `scorer.clip_d.checkpoint=…` reaches into the short string "clip_d" (or a sum with it) as into a mapping.

    Raises:
        ValueError: on a word without "=", or a dotted path through a value that is no mapping.
    """
    for key, value in assignments(words).items():
        values = laid_over(values, key, value)
    return _copy(values)


def assignments(words: Sequence[str]) -> dict[str, Any]:
    """Values of `key=value` words by their keys, in order.

    Raises:
        ValueError: on a word without "=".
    """
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ValueError(f"{word!r}: expected key=value, e.g. train.lr=1e-4")
        settings.pop(key, None)  # the last one comes last
        settings[key] = parse_value(text)
    return settings


def laid_over(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `values` with one value replaced; dots in `key` reach inside groups.

    Raises:
        ValueError: if the key leads through a value that is no group.
    """
    values = _copy(values)
    *path, last = key.split(".")
    at = values
    for name, inner in pairwise([*path, last]):
        at[name] = _opened(at.get(name, {}), inner)
        at = at[name]
        if not isinstance(at, dict):
            raise ValueError(f"{key}: {name} is a value, not a group of settings")
    at[last] = value
    return values


def _opened(value: Any, inner: str) -> Any:
    """The short string of scorers as the mapping that it stands for, where `inner` is one of them;
    else the value itself.
    """
    if not isinstance(value, str):
        return value
    try:
        mapping = as_mapping(value)
    except ValueError:
        return value
    return mapping if inner in mapping else value


def _copy(values: Any) -> Any:
    return {k: _copy(v) for k, v in values.items()} if isinstance(values, dict) else values


def build(kind: type[T], values: dict[str, Any], where: str = "") -> T:
    """A dataclass from nested dictionaries; missing keys keep their defaults, those of a group that is given
    in part too.

    Raises:
        ValueError: on an unknown key (naming the nearest), a value of the wrong type, or a missing required
        key.
    """
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    known = list(fields)
    out = {}
    for key, value in values.items():
        if key not in fields:
            raise unknown_setting(str(key), known, where)
        out[key] = _convert(hints[key], _completed(fields[key], value), f"{where}{key}")
    missing = [name for name, f in fields.items() if name not in out and _is_required(f)]
    if missing:
        raise ValueError(
            f"setting {where}{missing[0]} is required; give it in the recipe or as {where}{missing[0]}=…"
        )
    try:
        config = kind(**out)
        require_counts(config)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(where) else f"{where}{text}") from error
    return config


def _completed(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """Values of a group with those in which the default in this place differs from the group's own, such as
    another rank. What a preset fills in differs nowhere, so that another preset can fill in its own.
    """
    if not isinstance(value, dict) or field.default_factory is dataclasses.MISSING:
        return value
    default = field.default_factory()
    if not dataclasses.is_dataclass(default) or any(map(_is_required, dataclasses.fields(default))):
        return value
    settings = to_dict(type(default)())
    return {**{key: given for key, given in to_dict(default).items() if given != settings[key]}, **value}


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def unknown_setting(key: str, known: Sequence[str], where: str, inside: Sequence[str] = ()) -> ValueError:
    """The error for a name that is no setting of the group at `where`: with the setting that other libraries
    call so, else those of this name or meant by it in groups of that group, else the nearest, else all.

    Args:
        inside: settings of this name, or meant by it, in its groups, such as train.lr.
    """
    meant = meant_by(key, known) or inside or nearest(key, known)
    remedy = question([f"{where}{name}" for name in meant]) or f"known: {', '.join(known)}"
    return ValueError(f"unknown setting {where}{key}; {remedy}")


def meant_by(key: str, known: Collection[str]) -> list[str]:
    """The settings among those known that other libraries call so."""
    names = [name for name in ALIASES.get(key, ()) if name in known]
    if not names and key == "num_train_epochs":  # of a training that is not measured in passes over the rows
        return meant_by("epochs", known)
    return names


def require_counts(config: Any) -> None:
    """Raises ValueError where a whole number of a dataclass, or of one in it, is none that can be counted:
    each is at least 1, or at least 0 where its default is 0 or it is one of `FROM_ZERO`.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        defaults = field.default if isinstance(field.default, tuple) else (field.default,)
        least = 0 if 0 in defaults or field.name in FROM_ZERO else 1
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and not isinstance(number, bool) and number < least:
                raise ValueError(f"{field.name}: expected at least {least}; got {number}")
        for group in value.values() if isinstance(value, dict) else (value,):
            if dataclasses.is_dataclass(group) and not isinstance(group, type):
                try:
                    require_counts(group)
                except ValueError as error:
                    raise ValueError(f"{field.name}.{error}") from error


KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def shown(value: Any) -> str:
    """A setting's value in an error: texts in quotes, all else as YAML has it."""
    if isinstance(value, str):
        return f"'{value}'"
    return (
        yaml.safe_dump(to_dict(value), default_flow_style=True, allow_unicode=True).split("\n...")[0].strip()
    )


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Returns a setting's value as its type hint has it; ValueError if it cannot be that."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, value, where)
    if dataclasses.is_dataclass(hint):
        return _convert_group(typing.cast(type, hint), value, where)
    if origin is tuple:
        return _convert_tuple(args, value, where)
    if origin is dict:
        return _convert_dict(args, value, where)
    if origin is typing.Literal:
        return _convert_literal(args, value, where)
    return _convert_plain(hint, value, where)


def _convert_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    """The value as the first of the types that it can be, with the first one's error if it is none."""
    if value is None and type(None) in args:
        return None
    errors = []
    for arm in args:
        if arm is type(None):
            continue
        try:
            return _convert(arm, value, where)
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def _convert_group(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a group of settings; got {shown(value)}")
    return build(kind, value, f"{where}.")


def _convert_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    """A list as a tuple; a single value is a list of one."""
    if not isinstance(value, list | tuple):
        value = [value]
    if args[-1] is not Ellipsis and len(value) != len(args):
        raise ValueError(f"{where}: expected {len(args)} values; got {list(value)}")
    return tuple(_convert(args[0], v, where) for v in value)


def _convert_dict(args: tuple[Any, ...], value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected keys and values; got {shown(value)}")
    return {str(k): _convert(args[1], v, f"{where}.{k}") for k, v in value.items()}


def _convert_literal(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in args:
        return value
    names = list(map(str, args))
    raise ValueError(
        f"{where}: expected one of {', '.join(names)}; got {shown(value)}{hint(str(value), names)}"
    )


def _convert_plain(hint: Any, value: Any, where: str) -> Any:
    """A number, a text or a boolean: 3 is also a float and 3.0 also an int, but True is no number."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{where}: expected {KINDS.get(hint, hint.__name__)}; got {shown(value)}")
    return value


def require_unset(config: Any, names: Collection[str], reason: str, where: str = "") -> None:
    """Raises ValueError where one of these settings is not at its default, though it has no effect.

    Args:
        reason: ends the sentence "NAME: has no effect …", with the remedy.
        where: begins the names, such as "train.".
    """
    for f in dataclasses.fields(config):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if f.name in names and getattr(config, f.name) != default:
            raise ValueError(f"{where}{f.name}: has no effect {reason}")


@contextmanager
def named(group: str) -> Iterator[None]:
    """Within the block, errors about a setting begin with the name of its group."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{group}.{error}") from error


def to_dict(config: Any) -> Any:
    """A dataclass as plain YAML values."""
    if dataclasses.is_dataclass(config):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, tuple | list):
        return list(map(to_dict, config))
    if isinstance(config, dict):
        return {k: to_dict(v) for k, v in config.items()}
    return config


def dump(config: Any) -> str:
    """A dataclass as YAML text."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
