"""Processes that chaos tests start and kill: each says on its stdout when it works."""

import subprocess

from tests.support.waiting import answer_of


def wait_until_it_works(process: "subprocess.Popen[bytes]", what: str) -> None:
    """Until the process has said so."""
    assert process.stdout is not None
    assert answer_of(process.stdout.readline, f"{what} works") == b"going\n", what


def kill(process: "subprocess.Popen[bytes]") -> None:
    """By SIGKILL; it is reaped, and its pipe is closed."""
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
