"""Control of the libraries' messages in the terminal, and the wording of errors."""

import errno
import importlib
import logging
import os
import sys
import warnings

from rewardedit.models import causes

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_TEXTS = (
    "No space left on device",
    "File too large",
    "file write failed",
    "unexpected pos ",
    "iostream error",
    " requested and ",  # numpy: "524288 requested and 495552 written", without a number of the system's
)

# Remedies where memory runs out, by command.
SMALLER = {
    "train": (
        "take a smaller train.micro_batch_size, train.memory=auto; for FLUX and Qwen train.quantize=4bit"
    ),
    "relabel": "take a smaller data.size or a smaller scorer, or quantize: 4bit of a vision-language judge",
    "serve": "take a smaller --batch-size or a smaller scorer",
    **dict.fromkeys(
        ("edit", "app"), "take a smaller --size, --quantize 4bit (FLUX, Qwen), or a smaller scorer"
    ),
    **dict.fromkeys(
        ("score", "compare", "bench"),
        "take a smaller --size or a smaller scorer, or quantize: 4bit of a vision-language judge",
    ),
}


def quiet(imported: bool = False) -> None:
    """Keeps the libraries' chatter off the terminal: a missing torchvision is expected,
    weights load without a bar.

    Args:
        imported: do not import a library in order to silence it, which takes seconds; for commands that may
            need none and load no pipeline.
    """
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # transformers takes this over when it is imported
    for library in ("transformers", "diffusers"):
        os.environ.setdefault(f"{library.upper()}_VERBOSITY", "error")  # read when it is imported
        if library in sys.modules or not imported:
            library_logging = importlib.import_module(f"{library}.utils.logging")
            library_logging.set_verbosity_error()
            library_logging.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on a CPU it asks for a faster kernel
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r"The `local_dir_")  # datasets asks the hub in an old way


def disk_full_message(error: BaseException, out: str | None) -> str | None:
    """Message for an error that was caused by a full disk; None for other errors.

    torch, pyarrow and safetensors each report that in their own way, and other libraries wrap it in errors
    of their own.
    """
    for one in causes(error):
        number = one.errno if isinstance(one, OSError) else None
        if number in FULL or any(text in str(one) for text in FULL_TEXTS):
            where = out or "the run's folder"
            return f"no space left for {where}; make room, and give the command again (train: with --resume)"
    return None


def out_of_memory_message(error: BaseException, command: str) -> str | None:
    """Message for an error that was caused by memory that ran out, of a GPU or the machine; None for other
    errors.

    Args:
        command: such as "train"; the remedy depends on it.
    """
    if "torch" not in sys.modules and not isinstance(error, MemoryError):
        return None  # no model was loaded: a misspelt name does not wait for torch
    from rewardedit.devices import is_out_of_memory

    for one in causes(error):
        if is_out_of_memory(one):
            kind = "memory" if isinstance(one, MemoryError) or "CPU" in str(one) else "GPU memory"
            remedy = SMALLER.get(command, "take smaller images or a smaller model")
            return f"out of {kind}: {first_line(one)}; {remedy}; docs/troubleshooting.md has more"
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without Python's quotes around it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    words = error.args[0] if isinstance(error, KeyError) and error.args else error
    lines = str(words).splitlines()
    return lines[0] if lines else type(error).__name__
