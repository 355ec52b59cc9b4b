"""Ctrl-C and SIGTERM in a training: it finishes the current step and writes a checkpoint."""

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
            number: number of the signal; None if another process received it.
        """
        super().__init__(message)
        self.status = 128 + (number or signal.SIGTERM)


class StopRequest:
    """Number of the signal that requested the stop; None if there was none."""

    number: int | None = None


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Within the block, a signal sets `number`; the same signal a second time has its usual effect and ends
    the process. SIGTERM after Ctrl-C, as launchers may send it, does not count as a second time. Outside the
    main thread, which alone receives signals, nothing changes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):  # not print: the signal may have interrupted one
            os.write(2, SAID)
        request.number = request.number or number
        signal.signal(number, before[signal.Signals(number)])

    # A handler not set by Python code, as a launcher's may be, cannot be restored.
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not None}
    for number in before:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
