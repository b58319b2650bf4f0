"""Stop signals that reach a worker before its supervisor handles them.

A worker imports the application and opens its store first. That takes a second or more, and until
then the default action of SIGTERM would kill the process. Imports nothing of Tenure, so that it can
be loaded first.
"""

import signal
from collections.abc import Iterable
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class EarlyStop:
    """A signal handler that ends the process with exit code 0: it has no job yet to finish.

    The code that runs may catch the exception; then `was_asked` tells the supervisor.
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
