"""Models, processors, configs and pipelines of transformers, diffusers and PEFT, by hub name or folder.

All of them are loaded here, so that code which comes with a checkpoint never runs and nobody is asked on
standard input. Weights are safetensors; a checkpoint that has only pickled ones is read by torch's restricted
unpickler (`weights_only`), which makes tensors and calls nothing else.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError

from rewardedit.models import RELATIVE, is_hub_name, no_network, refusal
from rewardedit.untrusted import CONTENT_ERRORS, is_system_error

# Modules of the base classes of pipelines.
PIPELINES = {"diffusers.pipelines.pipeline_utils", "diffusers.pipelines.auto_pipeline"}
UNREACHABLE = "couldn't connect"  # in the errors of transformers and diffusers
_LOCK = threading.RLock()  # transformers' setting below is one for all threads


def load(kind: Any, name: str, **options: Any) -> Any:
    """Returns what a class of transformers, diffusers or PEFT reads from a folder or a hub name.

    Args:
        kind: the class, such as `AutoModel`.
        options: of its `from_pretrained`.

    Raises:
        ValueError: where the checkpoint wants code of its own, its files are no such model's, or the hub does
            not give it to this user.
        OSError: where there is none of that name.
    """
    _require_folder(name)
    try:
        return _load(kind, name, **options)
    except OSError as error:
        if is_hub_name(name) and UNREACHABLE in str(error):
            raise OSError(no_network(name)) from error
        raise


def _require_folder(name: str) -> None:
    """Raises OSError for the name of a local folder that is not there, without asking the hub for it."""
    if RELATIVE.fullmatch(name) and not Path(name).exists():
        raise OSError(f"{name}: no such folder")


def _load(kind: Any, name: str, **options: Any) -> Any:
    modules = [base.__module__ for base in kind.__mro__]
    with reading(name):
        if PIPELINES & set(modules):
            from rewardedit.models.shared import shared_parts

            parts = shared_parts(name, load_index(name), options.get("dtype"))
            return kind.from_pretrained(name, trust_remote_code=False, **{**parts, **options})
        if any(module.startswith("transformers.") for module in modules):
            return kind.from_pretrained(name, trust_remote_code=False, **options)
        return kind.from_pretrained(name, **options)  # diffusers' models and PEFT's configs know no code


def load_index(name: str) -> dict[str, Any]:
    """Returns a diffusers pipeline's index: its class and those of its parts.

    Raises:
        ValueError: where it names code of its own, or parts of other libraries.
        OSError: where there is none of that name.
    """
    from diffusers import DiffusionPipeline, pipelines

    _require_folder(name)
    with reading(name):
        index = DiffusionPipeline.load_config(name)
    if not isinstance(index.get("_class_name"), str):
        raise ValueError(
            f"{name}: expected a pipeline of diffusers; got one that brings code of its own, which is never "
            "run; use a stock one"
        )

    for component, value in index.items():
        if component.startswith("_") or not isinstance(value, list) or len(value) != 2 or value[0] is None:
            continue
        library, kind = value
        known = library in ("diffusers", "transformers") or (
            isinstance(library, str)
            and isinstance(module := getattr(pipelines, library, None), ModuleType)
            and module.__name__.startswith("diffusers.pipelines.")
        )
        if not known or not isinstance(kind, str):
            raise ValueError(
                f"{name}: expected parts of diffusers and transformers; got {component} of "
                f"{str(library)[:80]}, whose code is never run; use a stock pipeline"
            )

    return index


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Around the reading of a checkpoint's files: no code of it runs, and what is wrong with it, or a refusal
    by the hub, is a ValueError that names it; a missing file stays an OSError.
    """
    try:
        with _without_questions():
            yield
    except OSError as error:
        refused = refusal(name, error) if is_hub_name(name) else None
        if refused is not None:
            raise ValueError(refused) from error
        raise
    except (*CONTENT_ERRORS, ImportError, SafetensorError) as error:
        if is_system_error(error):
            raise
        text = str(error).strip()
        if "trust_remote_code" in text:
            raise ValueError(
                f"{name}: expected a model of the installed transformers or diffusers; got one that brings "
                "code of its own, which is never run; use a checkpoint of a built-in kind, or update them"
            ) from error
        line = " ".join(text.split())[:300] or type(error).__name__
        if not isinstance(error, ValueError) or isinstance(error, UnicodeError):
            raise ValueError(f"{name}: its files cannot be read as a checkpoint's ({line})") from error
        if line == text:
            raise
        raise ValueError(f"{name}: {line}") from error


@contextmanager
def _without_questions() -> Iterator[None]:
    """transformers refuses code of a checkpoint in place of asking, also for the parts of a model or a
    pipeline, to which it does not hand the option on.
    """
    from transformers import dynamic_module_utils

    with _LOCK:
        before = dynamic_module_utils.TIME_OUT_REMOTE_CODE
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
        try:
            yield
        finally:
            dynamic_module_utils.TIME_OUT_REMOTE_CODE = before
