"""The house rules hold, and each of them is able to say no."""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tests.support.cases import each_case
from tests.support.tidy import (
    MAX_FUNCTION_LINES,
    Source,
    core_calls_are_pure,
    core_imports_are_pure,
    counts_have_a_singular,
    exceptions_to_tools_carry_code_and_reason,
    functions_fit_a_screen,
    nothing_is_left_for_later,
    nothing_is_printed,
    nothing_unsafe_is_loaded,
    opens_with_a_docstring,
    session_does_no_io,
    sql_is_not_built_from_strings,
)

Rule = Callable[[Source], Iterator[str]]

ROOT = Path(__file__).parent.parent
SHIPPED = ("src", "packages")
OURS = (*SHIPPED, "tests", "tools", "bench", "examples", "docs")
KIT = "packages/tenure-conformance/src/tenure_conformance"
SESSION = ("src/tenure/worker/session",)

# Which rule is kept where, and what is exempt.
RULES: list[tuple[Rule, tuple[str, ...], tuple[str, ...]]] = [
    (opens_with_a_docstring, OURS, ()),
    (functions_fit_a_screen, SHIPPED, ()),
    (exceptions_to_tools_carry_code_and_reason, OURS, ()),
    (nothing_is_left_for_later, OURS, ()),
    (nothing_is_printed, SHIPPED, ("src/tenure/cli", f"{KIT}/command.py")),
    (nothing_unsafe_is_loaded, SHIPPED, ()),
    (sql_is_not_built_from_strings, SHIPPED, ()),
    (counts_have_a_singular, ("src/tenure/cli", "src/tenure/dashboard"), ()),
    (core_imports_are_pure, ("src/tenure/core",), ()),
    (core_calls_are_pure, ("src/tenure/core", *SESSION), ()),
    (session_does_no_io, SESSION, ()),
]

OFFENDERS: list[tuple[Rule, str]] = [
    (opens_with_a_docstring, ""),
    (opens_with_a_docstring, "import re\n'''Too late.'''\n"),
    (functions_fit_a_screen, "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES),
    (functions_fit_a_screen, "class C:\n async def f(self):\n" + "  x = 1\n" * MAX_FUNCTION_LINES),
    (exceptions_to_tools_carry_code_and_reason, "x = 1  # noqa\n"),
    (exceptions_to_tools_carry_code_and_reason, "x = 1  # noqa: S101\n"),
    (exceptions_to_tools_carry_code_and_reason, "x = 1  # ruff: noqa: S101\n"),
    (exceptions_to_tools_carry_code_and_reason, "x = 1  # type: ignore\n"),
    (exceptions_to_tools_carry_code_and_reason, "x = 1  # type: ignore[misc]\n"),
    (nothing_is_left_for_later, "x = 1  # " + "TO" + "DO: later\n"),
    (nothing_is_left_for_later, "'''" + "FIX" + "ME'''\n"),
    (nothing_is_printed, "def f():\n    print('x')\n"),
    (nothing_unsafe_is_loaded, "import pickle\n"),
    (nothing_unsafe_is_loaded, "def f():\n    from yaml.loader import load\n"),
    (nothing_unsafe_is_loaded, "eval('1')\n"),
    (nothing_unsafe_is_loaded, "exec('x = 1')\n"),
    (sql_is_not_built_from_strings, "c.execute(f'SELECT {x}')\n"),
    (sql_is_not_built_from_strings, "c.executemany('SELECT %s' % x, rows)\n"),
    (sql_is_not_built_from_strings, "c.execute('SELECT ' + x)\n"),
    (sql_is_not_built_from_strings, "c.execute('SELECT {}'.format(x))\n"),
    (counts_have_a_singular, "say(f'{count} jobs')\n"),
    (counts_have_a_singular, "say(f'found {len(found):,} late jobs of {name}')\n"),
    (session_does_no_io, "from time import monotonic\n"),
    (session_does_no_io, "import concurrent.futures\n"),
    (core_imports_are_pure, "from tenure.stores import memory\n"),
    (core_imports_are_pure, "from tenure.corex import y\n"),
    (core_imports_are_pure, "from uuid import UUID, uuid4\n"),
    (core_calls_are_pure, "datetime.now(UTC)\n"),
    (core_calls_are_pure, "uuid.uuid7()\n"),
    (core_calls_are_pure, "os.urandom(8)\n"),
    (core_calls_are_pure, "with open('x') as f: pass\n"),
    (core_calls_are_pure, "print('x')\n"),
    (core_calls_are_pure, "hash('differs from process to process')\n"),
    *(
        (core_imports_are_pure, f"import {module}\n")
        for module in (
            "asyncio",
            "contextvars",
            "logging",
            "os",
            "psycopg",
            "random",
            "secrets",
            "socket",
            "sqlite3",
            "subprocess",
            "threading",
            "time",
        )
    ),
]

INNOCENTS: list[tuple[Rule, str]] = [
    (opens_with_a_docstring, "'''What it is for.'''\n"),
    (
        functions_fit_a_screen,
        "def f():\n    '''" + "long\n" * 60 + "'''\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1),
    ),
    (exceptions_to_tools_carry_code_and_reason, "x = 1  # noqa: S101, S102 - the reason why\n"),
    (exceptions_to_tools_carry_code_and_reason, "x = 1  # type: ignore[misc]  # stubs lie\n"),
    (exceptions_to_tools_carry_code_and_reason, "x = '# noqa'\n"),
    (nothing_is_left_for_later, "x = 1  # the todo list of a user\n"),
    (nothing_is_printed, "console.print('x')\n"),
    (sql_is_not_built_from_strings, "c.execute(statements.claim, parameters)\n"),
    (sql_is_not_built_from_strings, "c.execute(sql.SQL('SELECT {}').format(name))\n"),
    (counts_have_a_singular, "say(f'there are no {word} dead letters')\n"),
    (counts_have_a_singular, "say(f'at most {MAX_JOBS:,} jobs of {name} jobsworth')\n"),
    (core_imports_are_pure, "from tenure.core.ids import JobId\nfrom tenure.errors import X\n"),
    (core_imports_are_pure, "from collections.abc import Mapping\nimport hashlib, msgspec\n"),
    (core_imports_are_pure, "from datetime import UTC, datetime\nfrom uuid import UUID\n"),
    (core_calls_are_pure, "def decide(job, *, now):\n    return lease.is_live(now)\n"),
]


def is_below(path: PurePosixPath, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def sources(folders: tuple[str, ...] = OURS, exempt: tuple[str, ...] = ()) -> Iterator[Source]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = Source(
                PurePosixPath(path.relative_to(ROOT).as_posix()), path.read_text("utf-8")
            )
            if not is_below(source.path, exempt):
                yield source


def test_the_house_is_tidy() -> None:
    """One test for all rules, and one file after the other: each is parsed once, and its syntax
    tree is gone before the next: a garbage collector that has all of them takes seconds."""
    complaints = [
        f"{source.path}:{complaint}"
        for source in sources()
        for rule, folders, exempt in RULES
        if is_below(source.path, folders) and not is_below(source.path, exempt)
        for complaint in rule(source)
    ]

    assert not complaints, "\n" + "\n".join(complaints)


@each_case(("rule", "snippet"), OFFENDERS)
def test_a_rule_catches_an_offender(rule: Rule, snippet: str) -> None:
    assert list(rule(Source(PurePosixPath("offender.py"), snippet)))


@each_case(("rule", "snippet"), INNOCENTS)
def test_a_rule_leaves_the_innocent_alone(rule: Rule, snippet: str) -> None:
    assert not list(rule(Source(PurePosixPath("innocent.py"), snippet)))


def test_every_rule_is_kept_somewhere_and_has_an_offender() -> None:
    assert {rule for rule, _, _ in RULES} == {rule for rule, _ in OFFENDERS}


def test_the_rules_see_the_code() -> None:
    assert any(source.path.name == "main.py" for source in sources())


def test_each_decision_record_has_a_number_of_its_own() -> None:
    titles = {
        page.name: page.read_text(encoding="utf-8").split(maxsplit=2)[1]
        for page in (ROOT / "docs" / "adr").glob("0*.md")
    }

    assert len(set(titles.values())) == len(titles)
    assert all(name.startswith(number.replace(".", "-")) for name, number in titles.items())


def test_the_index_of_decision_records_names_every_page() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text(encoding="utf-8")

    assert [page.name for page in folder.glob("0*.md") if f"]({page.name})" not in index] == []
