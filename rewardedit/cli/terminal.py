"""What reaches the terminal besides a command's own output."""

import warnings


def quiet() -> None:
    """Keeps the libraries' chatter off the terminal: a missing torchvision is expected, weights load without a bar."""
    import transformers
    from diffusers.utils import logging as diffusers_logging

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def sentence(error: Exception) -> str:
    """The first line of what an error says, without Python's quotes around it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    words = error.args[0] if isinstance(error, KeyError) and error.args else error
    lines = str(words).splitlines()
    return lines[0] if lines else type(error).__name__
