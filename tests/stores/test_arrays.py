"""Array literals mean what the lists meant, whatever is in them."""

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.stores.postgres.arrays import integers, texts
from tests.support.postgres import PostgresServer

NASTY = ["", "NULL", "null", '"', "\\", '\\"', "{}", "a,b", " a ", "\n", "é😀", "{{", '","']

any_text = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20
) | st.sampled_from(NASTY)


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    dsn = postgres.create_database()
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened
    postgres.drop_database(dsn)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.none() | any_text, max_size=8))
def test_texts_arrive_as_they_were_sent(
    connection: psycopg.Connection[tuple[object, ...]], values: list[str | None]
) -> None:
    [(arrived,)] = connection.execute("SELECT %s::text[]", [texts(values)]).fetchall()

    assert arrived == values


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=8))
def test_integers_arrive_as_they_were_sent(
    connection: psycopg.Connection[tuple[object, ...]], values: list[int | None]
) -> None:
    [(arrived,)] = connection.execute("SELECT %s::bigint[]", [integers(values)]).fetchall()

    assert arrived == values


@pytest.mark.parametrize("value", NASTY)
def test_one_text_that_looks_like_syntax_is_text(
    connection: psycopg.Connection[tuple[object, ...]], value: str
) -> None:
    [(arrived,)] = connection.execute("SELECT %s::text[]", [texts([value, "x"])]).fetchall()

    assert arrived == [value, "x"]
