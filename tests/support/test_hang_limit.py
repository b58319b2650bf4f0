"""A test process that hangs is ended, with the stacks of its threads, whatever it waits for."""

import pytest

HANGS_IN_A_POOL = """
    import threading
    from concurrent.futures import ThreadPoolExecutor

    def test_waits_again_when_it_has_failed():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(threading.Event().wait).result()
"""
HANGS_AFTER_THE_LAST_TEST = """
    import threading

    def test_leaves_a_thread():
        threading.Thread(target=threading.Event().wait).start()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "tests", [HANGS_IN_A_POOL, HANGS_AFTER_THE_LAST_TEST], ids=["pool", "session"]
)
def test_a_process_that_hangs_shows_its_stacks_and_ends(
    pytester: pytest.Pytester,
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
    tests: str,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    pytester.makepyfile(tests)

    run = pytester.runpytest_subprocess(
        "-p", "tests.support.hang_limit", "-o", "hang_limit=5", "-o", "timeout=1"
    )

    assert run.ret == 1
    run.stderr.fnmatch_lines(["Timeout (0:00:05)!", "*Thread 0x*", "*in wait"])


@pytest.mark.process
def test_under_xdist_the_run_says_which_test_hung(
    pytester: pytest.Pytester, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    pytester.makepyfile(HANGS_IN_A_POOL)

    run = pytester.runpytest_subprocess(
        "-p", "tests.support.hang_limit", "-o", "hang_limit=5", "-n", "1"
    )

    run.stdout.fnmatch_lines(["*crashed while running*test_waits_again_when_it_has_failed*"])
