"""Checks the names of settings against the source text of their dataclasses.

None of them is imported: they import torch, which takes seconds, and a misspelt name is answered at once.
What the source does not tell, such as names behind an alias of types, is left to the check of the values.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import rewardedit
from rewardedit import config as configs
from rewardedit import trainers

PLAIN = {"str", "int", "float", "bool", "None"}  # types of which no value is a group


@dataclass(frozen=True)
class Group:
    """A field whose value is a dataclass, or that holds several: a list, or a mapping from names."""

    module: str
    name: str
    holder: str = ""  # "", "tuple" or "dict"


def require_known(module: str, name: str, values: dict[str, Any], where: str = "") -> None:
    """Raises ValueError, naming the nearest, on the first name in nested values that is no setting.

    Args:
        module: module of the dataclass.
        name: name of the dataclass.
        where: the group's place, with a dot at its end.
    """
    fields = fields_of(module, name)
    if fields is None:
        return
    for key, value in values.items():
        if key not in fields:
            raise configs.unknown_setting(str(key), list(fields), where, _inside(fields, str(key)))
        group = fields[key]
        if group is None:
            continue
        for place, inner in _groups_in(value, group.holder, f"{where}{key}"):
            require_known(group.module, group.name, inner, f"{place}.")


def _inside(fields: dict[str, Group | None], key: str) -> list[str]:
    """The settings of this name, or meant by it, in the groups among these fields, as train.lr for lr."""
    names = []
    for group_name, group in fields.items():
        if group is None or group.holder:
            continue
        inner = fields_of(group.module, group.name) or {}
        meant = [key] if key in inner else configs.meant_by(key, inner)
        names += [f"{group_name}.{name}" for name in meant]
    return names


def _groups_in(value: Any, holder: str, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Places and values of the groups in a setting's value."""
    places = [(where, value)]
    if holder == "tuple":
        values = value if isinstance(value, list | tuple) else [value]
        places = [(where, inner) for inner in values]
    elif holder == "dict" and isinstance(value, dict):
        places = [(f"{where}.{key}", inner) for key, inner in value.items()]
    return [(place, inner) for place, inner in places if isinstance(inner, dict)]


@cache
def fields_of(module: str, name: str) -> dict[str, Group | None] | None:
    """The fields of a dataclass and of those that it inherits from, each with its group if it has one;
    None if the source does not tell.
    """
    definition = _locate(module, name)
    if definition is None:
        return None
    module, node = definition
    fields: dict[str, Group | None] = {}
    for base in reversed(node.bases):
        inherited = fields_of(module, ast.unparse(base))
        if inherited is None:
            return None
        fields |= inherited
    for statement in node.body:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if not ast.unparse(statement.annotation).startswith("ClassVar"):
            fields[statement.target.id] = _group(module, statement.annotation)
    return fields


def _group(module: str, annotation: ast.expr) -> Group | None:
    """The group that an annotation names: `A`, `A | None`, `tuple[A, ...]` or `dict[str, A]`."""
    if isinstance(annotation, ast.BinOp):
        arms = [arm for arm in (annotation.left, annotation.right) if ast.unparse(arm) not in PLAIN]
        return _group(module, arms[0]) if len(arms) == 1 else None
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("tuple", "dict"):
        holder = ast.unparse(annotation.value)
        items = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        inner = _group(module, items[1 if holder == "dict" else 0])
        return None if inner is None else Group(inner.module, inner.name, holder)
    if not isinstance(annotation, ast.Name):
        return None
    node = _locate(module, annotation.id)
    return None if node is None else Group(node[0], node[1].name)


def _locate(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """The module and the source of a dataclass, which another module may import."""
    tree = _source(module)
    for node in () if tree is None else tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            marks = [ast.unparse(mark).partition("(")[0] for mark in node.decorator_list]
            return (module, node) if "dataclass" in marks else None
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _locate(node.module, alias.name)
    return None


@cache
def _source(module: str) -> ast.Module | None:
    """The syntax tree of one of the package's modules; None for others."""
    package, *parts = module.split(".")
    folder = Path(next(iter(rewardedit.__path__)))
    if package != rewardedit.__name__:
        return None
    if parts[:1] == ["trainers"]:  # which lies elsewhere in a checkout
        folder, parts = Path(next(iter(trainers.__path__))), parts[1:]
    path = folder.joinpath(*parts)
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None
