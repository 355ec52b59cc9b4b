"""What reaches the terminal besides a command's own output."""

import importlib
import os
import shutil
import sys
import warnings
from pathlib import Path

LITTLE = 2**20  # bytes that are left on a disk that is full


def quiet(imported: bool = False) -> None:
    """Keeps the libraries' chatter off the terminal: a missing torchvision is expected,
    weights load without a bar.

    Args:
        imported: import no library for it, which takes seconds; for commands that may need none and load no
            pipeline.
    """
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # transformers takes this over when it is imported
    for library in ("transformers", "diffusers"):
        os.environ.setdefault(f"{library.upper()}_VERBOSITY", "error")  # read when it is imported
        if library in sys.modules or not imported:
            logging = importlib.import_module(f"{library}.utils.logging")
            logging.set_verbosity_error()
            logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def full_disk(out: str | None) -> str | None:
    """What to say where a command failed and the disk that it writes to is full; None where it is not.

    torch, pyarrow and safetensors each say that in a way of their own, if at all.
    """
    if out is None or "://" in out:
        return None
    folder = next(path for path in (Path(out), *Path(out).absolute().parents) if path.is_dir())
    if shutil.disk_usage(folder).free > LITTLE:
        return None
    return f"no space left on the disk of {out}; make room, and give the command again (train: with --resume)"


def sentence(error: Exception) -> str:
    """The first line of what an error says, without Python's quotes around it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    words = error.args[0] if isinstance(error, KeyError) and error.args else error
    lines = str(words).splitlines()
    return lines[0] if lines else type(error).__name__
