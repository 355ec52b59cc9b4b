"""What reaches the terminal besides a command's own output."""

import errno
import importlib
import logging
import os
import sys
import warnings

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_TEXTS = (
    "No space left on device",
    "File too large",
    "file write failed",
    "unexpected pos ",
    "iostream error",
    " requested and ",  # numpy: "524288 requested and 495552 written", without a number of the system's
)


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
            own = importlib.import_module(f"{library}.utils.logging")
            own.set_verbosity_error()
            own.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on a CPU it asks for a faster kernel
    warnings.filterwarnings("ignore", category=FutureWarning)


def full_disk(error: BaseException, out: str | None) -> str | None:
    """What to say where an error comes of a full disk; None where it does not.

    torch, pyarrow and safetensors each say that in a way of their own, and others raise errors of theirs
    around it.
    """
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for one in causes:
        number = one.errno if isinstance(one, OSError) else None
        if number in FULL or any(text in str(one) for text in FULL_TEXTS):
            where = out or "the run's folder"
            return f"no space left for {where}; make room, and give the command again (train: with --resume)"
    return None


def sentence(error: Exception) -> str:
    """The first line of what an error says, without Python's quotes around it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    words = error.args[0] if isinstance(error, KeyError) and error.args else error
    lines = str(words).splitlines()
    return lines[0] if lines else type(error).__name__
