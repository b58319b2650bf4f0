"""Job functions in a module whose annotations are all text, also inside functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tenure import Context, InvalidInput

if TYPE_CHECKING:
    from decimal import Decimal

    from tenure.client.app import Application


def test_text_annotations_are_resolved(app: Application) -> None:
    @app.job
    def work(ctx: Context, at: Later | None = None, many: list[int] | None = None) -> Later:
        return Later(1)

    job = work.enqueue(at=Later(7))

    assert job.refresh().payload == {"at": {"n": 7}}
    assert work.handler.context_parameter == "ctx"
    assert work.handler.hints["return"] is Later


def test_text_annotations_may_name_what_is_local_to_the_outer_function(app: Application) -> None:
    @dataclass
    class Local:
        n: int

    @app.job
    def plain(a: Local) -> None: ...

    @app.job(queue="x")
    def called(a: list[Local]) -> None: ...

    assert plain.enqueue(Local(1)).refresh().payload == {"a": {"n": 1}}
    assert called.enqueue([Local(1)]).refresh().payload == {"a": [{"n": 1}]}


def test_a_type_imported_for_type_checkers_only_is_named_at_the_first_use(app: Application) -> None:
    @app.job
    def work(a: Decimal) -> None: ...

    with pytest.raises(InvalidInput, match=r"Decimal.*also at run time"):
        work.enqueue(1)  # type: ignore[arg-type]  # the mistake


@dataclass
class Later:
    n: int
