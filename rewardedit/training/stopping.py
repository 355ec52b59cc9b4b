"""Ctrl-C and SIGTERM in a training: it goes on to the end of the step, where a checkpoint is written."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAID = b"\nstopping at the end of this step, after a checkpoint; once more stops at once\n"


class Stopped(KeyboardInterrupt):
    """A training was asked to stop and has written a checkpoint; `status` is the command's exit code."""

    def __init__(self, message: str, number: int | None) -> None:
        """
        Args:
            number: of the signal; None where another process got it.
        """
        super().__init__(message)
        self.status = 128 + (number or signal.SIGTERM)


class StopRequest:
    """Tells whether a signal has asked for the end, and which."""

    number: int | None = None


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Within the block a signal sets `number`, and the same one a second time does what it did before: it
    ends the process. A launcher may send SIGTERM after Ctrl-C; that is no second time. Threads other than the
    main one get no signals, and change nothing.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):  # not print, which the signal may have interrupted
            os.write(2, SAID)
        request.number = request.number or number
        signal.signal(number, before[signal.Signals(number)])

    # A handler that no Python code has set, as a launcher's may be, cannot be given back.
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not None}
    for number in before:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
