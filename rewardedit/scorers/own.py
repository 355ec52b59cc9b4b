"""User-defined scorers: a class or a function in a module or a file."""

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rewardedit.scorers.base import FunctionScorer, Scorer, declared


def find_own(name: str) -> type[Scorer]:
    """Returns the class of "package.module:Name" or "path/to/file.py:Name", a `Scorer` or a function.

    The working folder is searched for modules too, after all other places.

    Raises:
        ValueError: if it cannot be imported, or is neither.
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = _file_module(Path(place)) if place.endswith(".py") else _module(place)
        value = getattr(module, attribute)
    except Exception as error:  # user code may raise anything
        raise ValueError(f"scorer {name!r} cannot be imported: {error}") from error
    if isinstance(value, type) and issubclass(value, Scorer):
        return value
    if isinstance(value, type) or not callable(value):
        raise ValueError(
            f"scorer {name!r}: expected a subclass of rewardedit.Scorer or a function (EditBatch) -> (b,); "
            f"got {_kind(value)}"
        )
    return _class_of(value, attribute)


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a value of {type(value).__name__}"


def _module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:  # the command has its own folder in the path instead
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def _file_module(file: Path) -> ModuleType:
    """The module of a file, run once per process as long as the file stays the same."""
    path = file.expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"{file}: no such file")

    content = path.read_bytes()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode() + content).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            # Cached bytecode identifies a file by second and size: a change within a second may be missed.
            exec(compile(content, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise

    return sys.modules[name]


def _class_of(function: Any, name: str) -> type[FunctionScorer]:
    """A class whose scorers call the function, with the attributes that `rewardedit.scorer` declared."""

    def __init__(self: FunctionScorer) -> None:
        FunctionScorer.__init__(self, function)

    return type(name, (FunctionScorer,), {**declared(function), "__init__": __init__})
