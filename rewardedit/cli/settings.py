"""The settings of a recipe, as `rewardedit train RECIPE --help` lists them."""

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from rewardedit import config as configs

INDENT = 36  # columns before a setting's description
NARROWEST = 40  # columns of a description


@dataclass(frozen=True)
class Setting:
    """One setting of a config."""

    name: str  # with dots, as on the command line
    type: str
    value: Any
    help: str  # "" if the field has no comment


def settings_of(kind: type, config: Any = None, where: str = "") -> Iterator[Setting]:
    """All settings of a config class and of its groups, each with its value in `config`,
    or its default without one.

    The settings of a group that is null are listed with their own defaults.
    """
    hints = typing.get_type_hints(kind)
    comments = field_comments(kind)
    for field in dataclasses.fields(kind):
        name = f"{where}{field.name}"
        value = default_of(field) if config is None else getattr(config, field.name)
        variants = (hints[field.name], *typing.get_args(hints[field.name]))
        group = next(filter(is_group, variants), None)
        help_text = re.sub(r"\bNone\b", "null", comments.get(field.name, ""))  # as it is written in a recipe
        if group is None:
            yield Setting(name, type_name(hints[field.name]), value, help_text)
            continue
        if typing.get_origin(hints[field.name]) is dict:  # several groups, by names that the recipe gives
            yield Setting(name, type_name(hints[field.name]), list(value or ()), help_text or summary(group))
            for key, options in (value or {"NAME": None}).items():
                yield from settings_of(group, options, f"{name}.{key}.")
            continue
        yield Setting(name, type_name(hints[field.name]), value, help_text or summary(group))
        if typing.get_origin(hints[field.name]) is tuple:  # several groups, one after another
            yield from settings_of(group, None, f"{name}[].")
        else:
            yield from settings_of(group, value, f"{name}.")


def is_group(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def default_of(field: dataclasses.Field) -> Any:
    """A field's default; None if it must be given."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def summary(kind: type) -> str:
    """The first paragraph of a class's docstring."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).removesuffix(".")


def field_comments(kind: type) -> dict[str, str]:
    """Comments of a dataclass's fields: at the end of a field's line,
    or else in the lines above it.

    A field whose default a subclass changes keeps its comment.
    """
    comments: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if dataclasses.is_dataclass(owner):
            comments |= own_comments(inspect.getsource(owner))
    return comments


def own_comments(source: str) -> dict[str, str]:
    """The comments of the fields in a class's source."""
    lines = source.splitlines()
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    comments: dict[str, str] = {}
    for node in body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        assert node.end_lineno is not None
        rest = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip()
        above: list[str] = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.strip().startswith("#"):
                break
            above.insert(0, line.strip())
        written = [rest] if rest.startswith("#") else above
        comment = " ".join(line.removeprefix("#").strip() for line in written)
        if comment:
            comments[node.target.id] = comment
    return comments


def type_name(hint: Any) -> str:
    """e.g. "int or null", "a | b", "list of float"."""
    origin = typing.get_origin(hint)
    variants = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(type_name, variants))
    if origin is typing.Literal:
        return " | ".join(map(str, variants))
    if origin is tuple:
        return f"list of {type_name(variants[0])}"
    if origin is dict:
        return f"mapping to {type_name(variants[1])}"
    if hint is types.NoneType:
        return "null"
    if hint is Any:
        return "any value"
    return (
        "group"
        if is_group(hint)
        else {"str": "text", "bool": "true | false"}.get(hint.__name__, hint.__name__)
    )


def describe(kind: type, config: Any, changed: set[str], where: str = "", before: Any = None) -> str:
    """The settings as lines `name=value  what it is (type)`, wrapped to the terminal's width.

    Args:
        changed: names of settings that the recipe or the command line sets; they are marked with a star.
        where: written before each name, e.g. "phase-2.".
        before: another config of this kind, whose settings are left out where they are the same.
    """
    earlier = set() if before is None else set(map(assignment, settings_of(kind, before)))
    width = max(INDENT + NARROWEST, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=" " * INDENT, break_long_words=False, break_on_hyphens=False
    )
    lines = []
    for setting in settings_of(kind, config):
        text = assignment(setting)
        if text in earlier:
            continue
        head = f"{'*' if setting.name in changed else ' '} {where}{text}"
        if len(head) > INDENT - 2:
            lines.append(head)
            head = ""
        lines += wrapper.wrap(f"{head:<{INDENT}}{setting.help} ({setting.type})")
    return "\n".join(lines)


def assignment(setting: Setting) -> str:
    """`name=value` as it could be typed; for a group that is not null, only its name."""
    if is_group(type(setting.value)):
        return setting.name
    value = configs.to_dict(setting.value)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return f"{setting.name}={text.strip().removesuffix('...').strip()}"  # yaml ends a single word with "..."


def names_in(values: dict[str, Any], where: str = "") -> set[str]:
    """The dotted names of a recipe's values."""
    names: set[str] = set()
    for key, value in values.items():
        names.add(f"{where}{key}")
        if isinstance(value, dict):
            names |= names_in(value, f"{where}{key}.")
    return names
