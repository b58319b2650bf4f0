"""What type checkers see: the real signature, typed results, and mistakes.

Each line of the snippet says what mypy has to say about it: `# -> type` for a revealed type,
`# refused: words` for a mistake, and nothing where it must have no complaint.
"""

import pytest
from mypy import api

from tenure.handlers.options import OPTION_NAMES

pytestmark = pytest.mark.slow

SNIPPET = """
from typing import Any
from tenure import Context, Job, Retry, Tenure

app = Tenure()

@app.job
def add(a: int, b: int = 2) -> float:
    return a + b

@app.job(queue="web", lease="60s", timeout=None, retry=Retry(max_attempts=4))
async def fetch(ctx: Context, url: str) -> list[bytes]:
    return []

@app.job()
def research(topic: str, ctx: Context) -> dict[str, int]:
    return {}

@app.job(isolation="thread")
async def wander(topic: str, depth: int = 1, *, ctx: Context) -> str:
    return topic

@app.job
def tick(context: Context) -> None: ...

@app.job
def store(anything: Any) -> None: ...

@app.job
def lookup(key: int, delay: float) -> None: ...

def ctx() -> Context: ...  # type: ignore[empty-body]

# the function itself
reveal_type(add(1))  # -> float
reveal_type(research(topic="x", ctx=ctx()))  # -> dict[str, int]
add("wrong")  # refused: "__call__" of "JobFunction" has incompatible type "str"; expected "int"
research("x")  # refused: Missing positional argument "ctx" in call to "__call__" of "JobFunction"

# its jobs
reveal_type(add.enqueue(1))  # -> Job[float]
reveal_type(add.enqueue(a=1, b=2).result())  # -> float
add.enqueue("wrong")  # refused: has incompatible type "str"; expected "int"
add.enqueue(a="wrong")  # refused: has incompatible type "str"; expected "int"
add.enqueue(1, 2, 3)  # refused: Too many arguments for "enqueue"
add.enqueue(1, c=3)  # refused: Unexpected keyword argument "c" for "enqueue"
add.enqueue()  # refused: Missing positional argument "a" in call to "enqueue"
job: Job[str] = add.enqueue(1)  # refused: has type "Job[float]", variable has type "Job[str]"

# options, by using only
reveal_type(add.using(key="x").using(delay=5).enqueue(1))  # -> Job[float]
reveal_type(research.using(key="x").enqueue("leases"))  # -> Job[dict[str, int]]
reveal_type(fetch.using(delay=5).enqueue("u").result(timeout="1m"))  # -> list[bytes]
add.enqueue(1, key="x")  # refused: Unexpected keyword argument "key" for "enqueue"
add.enqueue(1, delay="5m")  # refused: Unexpected keyword argument "delay" for "enqueue"
add.using(key="x").enqueue("wrong")  # refused: has incompatible type "str"; expected "int"
add.using(key=7)  # refused: Argument "key" to "using" of "Enqueueable" has incompatible type "int"
add.using(kee="x")  # refused: Unexpected keyword argument "kee" for "using"
fetch.using().enqueue(7)  # refused: matches argument type "int"

# a parameter may have the name of an option
reveal_type(lookup.using(key="once").enqueue(key=7, delay=1.5))  # -> Job[None]
lookup.enqueue(key="x", delay=1.5)  # refused: has incompatible type "str"; expected "int"

# many calls
reveal_type(add.call(1))  # -> Call[float]
reveal_type(add.using(key="x").call(1))  # -> Call[float]
reveal_type(fetch.call("u"))  # -> Call[list[bytes]]
reveal_type(app.enqueue_many(add.call(n) for n in range(3)))  # -> list[Job[float]]
reveal_type(app.enqueue_many([add.call(1), lookup.call(1, 2)]))  # -> list[Job[float | None]]
add.call("wrong")  # refused: has incompatible type "str"; expected "int"
add.using(key="x").call("wrong")  # refused: has incompatible type "str"; expected "int"
app.enqueue_many(add.call(text) for text in "abc")  # refused: type "str"; expected "int"
app.enqueue_many([{"a": 1}])  # refused: type "list[dict[str, int]]"; expected "Iterable[Call

# the context is not an argument of theirs
reveal_type(fetch.enqueue("u"))  # -> Job[list[bytes]]
reveal_type(fetch.enqueue(url="u"))  # -> Job[list[bytes]]
reveal_type(research.enqueue("x"))  # -> Job[dict[str, int]]
reveal_type(research.enqueue(topic="x"))  # -> Job[dict[str, int]]
reveal_type(wander.enqueue("x", depth=2))  # -> Job[str]
reveal_type(tick.enqueue())  # -> Job[None]
reveal_type(store.enqueue("x"))  # -> Job[None]
reveal_type(store.using(key="x").enqueue("x"))  # -> Job[None]
fetch.enqueue(7)  # refused: matches argument type "int"
fetch.enqueue()  # refused: require at least one argument

async def main() -> None:
    reveal_type(await fetch(ctx=ctx(), url="u"))  # -> list[bytes]
    reveal_type(await fetch(ctx(), "u"))  # -> list[bytes]
    reveal_type(await fetch.aenqueue("u"))  # -> Job[list[bytes]]
    reveal_type(await (await fetch.aenqueue("u")).aresult())  # -> list[bytes]
    reveal_type(await add.using(key="x").aenqueue(1))  # -> Job[float]
    reveal_type(await app.aenqueue_many(add.call(n) for n in range(3)))  # -> list[Job[float]]
    await add.aenqueue("wrong")  # refused: has incompatible type "str"; expected "int"
    await add.using().aenqueue("wrong")  # refused: has incompatible type "str"; expected "int"

# by name, and the decorator
reveal_type(app.get("x").result())  # -> Any
reveal_type(app.enqueue("kind", {}, queue="far"))  # -> Job[Any]
reveal_type(app.call("kind", {}))  # -> Call[Any]
app.job(leese="60s")  # refused: Unexpected keyword argument "leese" for overloaded function "job"

# every option there is
option: Any
""" + "".join(
    f"reveal_type(add.using({name}=option).enqueue(1))  # -> Job[float]\n"
    for name in sorted(OPTION_NAMES)
)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What `mypy --strict` says about the snippet, by line; hints to its complaints left out."""
    folder = tmp_path_factory.mktemp("typing")
    snippet = folder / "snippet.py"
    snippet.write_text(SNIPPET)
    out, problems, _ = api.run(
        [
            "--strict",
            "--config-file=",
            f"--cache-dir={folder / 'cache'}",
            "--no-error-summary",
            str(snippet),
        ]
    )
    assert problems == ""
    lines: dict[int, list[str]] = {}
    for module in ("tenure.client.jobs.", "tenure.handlers.calls.", "builtins."):
        out = out.replace(module, "")
    for line in out.splitlines():
        place, _, text = line.partition(": ")
        name, _, number = place.rpartition(":")
        assert name == str(snippet), "mypy complains about Tenure itself"
        if text.startswith("error: ") or "Revealed type" in text:
            lines.setdefault(int(number), []).append(text)
    return lines


def wanted(mark: str) -> dict[int, str]:
    """What the snippet says behind this mark, by line."""
    numbered = enumerate(SNIPPET.splitlines(), start=1)
    marked = [(number, line.partition(f"  # {mark} ")) for number, line in numbered]
    return {number: words for number, (_, found, words) in marked if found}


def test_type_checkers_see_the_real_signature_and_the_result(said: dict[int, list[str]]) -> None:
    revealed = {number: said.get(number) for number in wanted("->")}

    assert revealed == {
        number: [f'note: Revealed type is "{words}"'] for number, words in wanted("->").items()
    }


def test_type_checkers_refuse_wrong_arguments_and_nothing_else(said: dict[int, list[str]]) -> None:
    refused = {number for number, texts in said.items() if texts[0].startswith("error: ")}

    assert refused == set(wanted("refused:"))
    for number, words in wanted("refused:").items():
        assert words in said[number][0]
