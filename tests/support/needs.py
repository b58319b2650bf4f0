"""What a test needs of the machine: the markers `process`, `postgres` and `slow`.

`make quick` leaves all three out. A test that asks for a PostgreSQL server by a fixture or a
parameter is marked `postgres` here; one that starts processes of its own says
`pytest.mark.process`, one that computes for long `pytest.mark.slow`. A test without a mark that
starts a process all the same fails: otherwise the quick tests would slowly stop being quick.
"""

import sys

import pytest

_STARTS_A_PROCESS = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
_POSTGRES = "postgres"


class Needs:
    """Knows which test runs in this process, and which may start processes."""

    def __init__(self) -> None:
        self._running: pytest.Item | None = None
        sys.addaudithook(self._audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        self._running = item
        try:
            return (yield)
        finally:
            self._running = None

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in _STARTS_A_PROCESS or self._running is None:
            return
        marks = {mark.name for mark in self._running.iter_markers()}
        if not marks & {"process", "browser", _POSTGRES}:
            raise AssertionError(
                f"{self._running.nodeid} starts a process: mark it with pytest.mark.process"
            )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Needs(), "tenure-needs")


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and any(_POSTGRES in name for name in _asked(item)):
        item.add_marker(_POSTGRES)


def _asked(item: pytest.Function) -> list[str]:
    """Names of the fixtures it uses, and the id of its parameters."""
    return [*item.fixturenames, *([item.callspec.id] if hasattr(item, "callspec") else [])]
