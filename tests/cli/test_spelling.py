"""Names of settings are checked against the source of their dataclasses, without an import."""

import dataclasses
import importlib
import subprocess
import sys
import typing
from typing import Any

import pytest

from rewardedit.cli.bench import SETTINGS
from rewardedit.cli.recipes import TRAINERS
from rewardedit.cli.spelling import Group, fields_of, require_known

CLASSES = [
    *((module, "Config") for module in TRAINERS.values()),
    *SETTINGS.values(),
    ("rewardedit.data", "DataConfig"),
]


def group_in(hint: Any) -> tuple[type, str] | None:
    """The dataclass that a type hint names, and "tuple" or "dict" where it holds several."""
    if dataclasses.is_dataclass(hint):
        return typing.cast(type, hint), ""
    arms = typing.get_args(hint)
    holder = typing.get_origin(hint)
    if holder in (tuple, dict):
        inner = arms[1 if holder is dict else 0]
        return (inner, holder.__name__) if dataclasses.is_dataclass(inner) else None
    groups = [group_in(arm) for arm in arms if arm is not type(None)]
    return groups[0] if len(groups) == 1 else None


def compare(kind: type, module: str, name: str) -> int:
    """Compares the fields of a class and its groups with those in the source; returns their number."""
    found = fields_of(module, name)
    assert found is not None, name
    hints = typing.get_type_hints(kind)
    assert list(found) == [field.name for field in dataclasses.fields(kind)]
    number = len(found)
    for key, group in found.items():
        expected = group_in(hints[key])
        assert (group is None) == (expected is None), f"{name}.{key}"
        if isinstance(group, Group) and expected is not None:
            assert (group.name, group.holder) == (expected[0].__name__, expected[1]), f"{name}.{key}"
            number += compare(expected[0], group.module, group.name)
    return number


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_the_source_has_the_fields_that_the_class_has(module, name):
    kind = getattr(importlib.import_module(module), name)
    assert compare(kind, module, name) >= 7


LIBRARIES = ("accelerate", "diffusers", "numpy", "PIL", "torch", "transformers")
MISSPELT = [
    ("train quickstart trian.lr=1", "unknown setting trian; did you mean train?"),
    ("train quickstart train.lrr=1", "unknown setting train.lrr; did you mean train.lr?"),
    ("train quickstart relabel.scorrer=l1 --dry-run", "did you mean relabel.scorer?"),
    ("train magicbrush-refl evaluate.data.pth=x", "did you mean evaluate.data.path?"),
    ("train magicbrush-adiee-data data.magicbrush.pth=x", "did you mean data.magicbrush.path?"),
    ("train magicbrush-adiee phase-2.train.lrr=1", "did you mean phase-2.train.lr?"),
    ("relabel data.nmae=table --out x", "did you mean data.name?"),
    ("score name=shapes limt=3 --scorer l1", "did you mean limit?"),
    ("train magicbrush-refl train.learning_rate=1", "did you mean train.lr?"),
    ("train magicbrush-adiee phase-4.train.steps=1", "did you mean phase-4.train.max_steps?"),
    ("train magicbrush-refl lr=1", "unknown setting lr; did you mean train.lr?"),
    ("train magicbrush-refl train.xyz=1", "unknown setting train.xyz; known: max_steps, batch_size"),
    ("bench robustness rows.csv atack.stepped=3", "did you mean attack?"),
    ("bench shapes attack.steped=3", "did you mean attack.stepped?"),
]
SCRIPT = """
import sys
from rewardedit.cli import main

for words in sys.argv[2:]:
    assert main(words.split()) == 2, words
    loaded = set(sys.argv[1].split()) & set(sys.modules)
    assert not loaded, (words, loaded)
"""


def test_a_misspelt_name_is_told_before_libraries_are_imported():
    commands = [command for command, _ in MISSPELT]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, " ".join(LIBRARIES), *commands], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for line, (_, message) in zip(done.stderr.splitlines(), MISSPELT, strict=True):
        assert message in line


def test_what_the_source_does_not_tell_is_left_to_the_values():
    scorer = {"clip_d": {"any": 1}}
    values = {"name": "x", "reward": {"scorer": scorer}, "train": "no group", "evaluate": None}
    require_known(TRAINERS["refl"], "Config", values)
    with pytest.raises(ValueError, match=r"unknown setting reward\.scoer; did you mean reward\.scorer"):
        require_known(TRAINERS["refl"], "Config", {"reward": {"scoer": "l1"}})
