"""Named statements: found, filled, numbered; what a dialect changes it gives a reason for."""

import re
from importlib.resources import files

import pytest

from tenure.stores.sql.statements import Statements, compile_statement, fill, load_texts


def _sections(package: str, name: str = "statements") -> dict[str, str]:
    source = files(f"tenure.stores.{package}").joinpath(f"{name}.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", source, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_each_statement_of_a_dialect_says_why_it_differs(dialect: str) -> None:
    without = [name for name, text in _sections(dialect).items() if "-- Differs: " not in text]

    assert not without


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_dialect_overrides_and_adds(dialect: str) -> None:
    texts = load_texts(f"tenure.stores.{dialect}", {"t": "x_"})

    sections = [_sections("sql", "common"), _sections(dialect), _sections(dialect, "health")]
    assert set().union(*sections) == set(texts)
    assert texts["moment"] == "SELECT x_clock(), epoch FROM x_meta"


def test_a_parameter_has_one_number_however_often_it_is_used() -> None:
    statement = compile_statement("a = :a AND b = :b OR a > :a AND c::text = ':d'", placeholder="$")

    assert statement.names[:2] == ("a", "b")
    assert statement.text.startswith("a = $1 AND b = $2 OR a > $1 AND c::text")


def test_unknown_placeholders_stay_in_the_statement() -> None:
    assert fill("{a} {b} {}", {"a": "x"}) == "x {b} {}"


def test_a_shape_is_compiled_once() -> None:
    statements = Statements("tenure.stores.sqlite", {"t": "tenure_"}, placeholder="?")

    first = statements.shaped("list_jobs", (("clauses", ""),))

    assert statements.shaped("list_jobs", (("clauses", ""),)) is first
    assert statements.shaped("list_jobs", (("clauses", "AND id < :before"),)) is not first
