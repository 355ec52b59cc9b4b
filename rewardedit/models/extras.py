"""Optional packages: the extra that brings each, and the command that installs it."""

import re
from importlib import metadata
from typing import Any

EXTRA = re.compile(r'extra == "([\w-]+)"')  # in a requirement's marker: the extra that it belongs to
# packages that rewardedit cannot do without
IMPORTED = ("torch", "diffusers", "transformers", "peft", "accelerate", "safetensors", "datasets")


def requirements() -> list[Any]:
    """Requirements of rewardedit with their markers, except those that only its developers need."""
    from packaging.requirements import Requirement

    try:
        texts = metadata.requires("rewardedit") or []
    except metadata.PackageNotFoundError:  # run from a folder that is not installed
        texts = list(IMPORTED)
    of_developers = ('extra == "dev"', 'extra == "docs"')
    kept = []
    for requirement in map(Requirement, texts):
        marker = str(requirement.marker)
        if not any(extra in marker for extra in of_developers):
            kept.append(requirement)
    return kept


def extras() -> dict[str, str]:
    """Extras by the names of the optional packages that they bring."""
    by_extra = {}
    for wanted in requirements():
        if extra := EXTRA.search(str(wanted.marker)):
            by_extra.setdefault(wanted.name, extra[1])  # the first, where several bring it
    return by_extra


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra.

    It names the packages themselves: it works in a checkout and elsewhere, and needs no index that knows
    rewardedit.

    Raises:
        KeyError: on an extra that rewardedit does not have.
    """
    packages = []
    for wanted in requirements():
        if f'"{extra}"' in str(wanted.marker):
            packages.append(repr(f"{wanted.name}{_brackets(wanted.extras)}{wanted.specifier}"))
    if not packages:
        raise KeyError(extra)
    return f"pip install {' '.join(packages)}"


def _brackets(extras: set[str]) -> str:
    return f"[{','.join(sorted(extras))}]" if extras else ""
