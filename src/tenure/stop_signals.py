"""Stop signals that reach a worker before its supervisor handles them, and the one that it sends to
itself when the process that started it has died.

A worker imports the application and opens its store first. That takes a second or more, and until
then the default action of SIGTERM would kill the process. Imports nothing of Tenure, so that it can
be loaded first.
"""

import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class EarlyStop:
    """A signal handler that ends the process with exit code 0: it has no job yet to finish.

    The code that runs may catch the exception; then `was_asked` says so to the supervisor.
    """

    def __init__(self) -> None:
        self.was_asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal and exit."""
        self.was_asked = True
        raise SystemExit(0)


def end_when_asked() -> None:
    """From now on, and until other handlers are set, a stop signal ends the process with exit code
    0. A signal that is ignored stays so, as SIGHUP does under nohup."""
    stop = EarlyStop()
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def was_asked(handlers: Iterable[object]) -> bool:
    """Whether one of these handlers was called and could not end the process."""
    return any(isinstance(each, EarlyStop) and each.was_asked for each in handlers)


def stop_when_closed(pipe: int) -> None:
    """From now on this process gets SIGTERM when the other end of the pipe is closed. The owner
    needs no code: the kernel closes the pipe when it dies."""
    os.set_inheritable(pipe, False)

    def watch() -> None:
        os.read(pipe, 1)  # nothing is ever written
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="tenure-lifeline", daemon=True).start()
