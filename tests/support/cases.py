"""Many cases of one small check as one test.

`pytest.mark.parametrize` makes a test of each case: every process collects it and reports it, 5 ms
of a core, which is more than most checks of a pure function take. `each_case` runs the cases of a
table in one test instead, all of them, and names those that fail. Use it for tables of dozens of
cases that share no state: fixtures are set up once.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

MAX_SHOWN = 5

Test = Callable[..., None]


def each_case(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Call the test with each of these cases; like `parametrize`, a single name takes values."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    chosen = [case if len(keys) > 1 else (case,) for case in cases]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            assert chosen, "there are no cases"
            failures: list[BaseException] = []
            for case in chosen:
                values = dict(zip(keys, case, strict=True))
                try:
                    test(**values, **fixtures)
                except (Exception, pytest.fail.Exception) as failure:
                    failure.add_note(f"the case: {values}")
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(
                    f"{len(failures)} of {len(chosen)} cases fail", failures[:MAX_SHOWN]
                )

        signature = inspect.signature(test)
        wanted = [each for name, each in signature.parameters.items() if name not in keys]
        vars(run)["__signature__"] = signature.replace(parameters=wanted)
        return run

    return decorate
