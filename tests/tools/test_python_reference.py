"""The reference page of the Python API: written from the code, and true of instances."""

from pathlib import Path

import tenure
from tenure import Attempt, Context, Tenure
from tenure.testing import FakeContext, inline
from tools.python_reference import ATTRIBUTES, page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"


def test_the_page_is_written_from_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs-generated`"


def test_every_public_name_has_its_place() -> None:
    text = page()

    for name in tenure.__all__:
        assert f"## `{name}`" in text or f"- `{name}` (`" in text, name
    for name in tenure.testing.__all__:
        assert f"### `{name}`" in text or f"- `with {name}(" in text, name


def test_every_attribute_is_there() -> None:
    app = Tenure("memory://")
    with inline(app) as jobs:
        flow = app.flow("f")
        instances = {
            "Flow": flow,
            "FlowJob": flow.add(app.call("x")),
            "HandlerFlow": FakeContext().flow(),
            "Job": app.enqueue("x"),
            "Inline": jobs,
            "Context": FakeContext(),
            "FakeContext": FakeContext(),
            "Attempt": Attempt(FakeContext(), {}),
            "Call": app.call("x"),
            "Enqueued": FakeContext().enqueue(app.call("x")),
        }

        assert set(ATTRIBUTES) == set(instances)
        for name, instance in instances.items():
            for attribute in ATTRIBUTES[name]:
                assert hasattr(instance, attribute), f"{name}.{attribute}"
    assert ATTRIBUTES["Context"].keys() == Context.__annotations__.keys()


def test_a_call_is_shown_as_it_is_written() -> None:
    text = page()

    options = "**request: RequestOptions"
    assert f'- `cancel(*, hard: bool = False, reason: str = "", {options}) -> JobStatus`' in text
    assert "- `enqueue(kind: str, payload: Any = None, /, **options: EnqueueOptions)" in text
    assert "- `await aresult(timeout: str | timedelta | float | None = None) -> R`" in text
