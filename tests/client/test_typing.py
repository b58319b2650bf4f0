"""What type checkers see: the real signature, typed results, and mistakes."""

from pathlib import Path

from mypy import api

SNIPPET = """
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

reveal_type(add(1))
reveal_type(add.enqueue(1, key="x", delay="5m"))
reveal_type(add.using(key="x").enqueue)
reveal_type(add.enqueue(1).result())
reveal_type(fetch.using(delay=5).enqueue("u").result(timeout="1m"))
reveal_type(research.enqueue(topic="x"))
reveal_type(app.get("x").result())
reveal_type(app.enqueue("kind", {}))
reveal_type(add.enqueue_many([{"a": 1}]))

async def main() -> None:
    reveal_type(await fetch(ctx(), "u"))
    reveal_type(await fetch.aenqueue("u"))
    reveal_type(await (await fetch.aenqueue("u")).aresult())

def ctx() -> Context: ...  # type: ignore[empty-body]

add("wrong")
add.using(key="x").enqueue("wrong")
add.using(kee="x")
fetch.using().enqueue(7)
app.job(leese="60s")
job: Job[str] = add.enqueue(1)
"""

REVEALED = [
    "float",
    "Job[float]",
    "def (a: int, b: int =) -> Job[float]",
    "float",
    "list[bytes]",
    "Job[dict[str, int]]",
    "Any",
    "Job[Any]",
    "list[Job[float]]",
    "list[bytes]",
    "Job[list[bytes]]",
    "list[bytes]",
]
MISTAKES = [
    '"__call__" of "JobFunction" has incompatible type "str"; expected "int"',
    '"enqueue" of "Using" has incompatible type "str"; expected "int"',
    'Unexpected keyword argument "kee" for "using"',
    '"enqueue" of "Using" has incompatible type "int"; expected "str"',
    'Unexpected keyword argument "leese" for overloaded function "job"',
    'expression has type "Job[float]", variable has type "Job[str]"',
]


def test_type_checkers_see_the_real_signature_and_the_result(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    cache = tmp_path / "cache"

    out, _, _ = api.run(
        ["--strict", "--config-file=", f"--cache-dir={cache}", "--no-error-summary", str(snippet)]
    )

    short = out.replace("tenure.client.jobs.", "").replace("builtins.", "")
    lines = short.splitlines()
    revealed = [line.partition('Revealed type is "')[2][:-1] for line in lines if "Reve" in line]
    errors = [line for line in lines if ": error: " in line]
    assert revealed == REVEALED
    assert len(errors) == len(MISTAKES), out
    for line, mistake in zip(errors, MISTAKES, strict=True):
        assert mistake in line
