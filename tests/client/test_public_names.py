"""The names users import: all there, and cheap until they are needed."""

import subprocess
import sys

import pytest

import tenure


def test_every_public_name_is_there() -> None:
    for name in tenure.__all__:
        assert getattr(tenure, name) is not None
    assert dir(tenure) == sorted(tenure.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Tenur'"):
        tenure.Tenur  # type: ignore[attr-defined]  # noqa: B018 - the mistake


def test_every_error_is_one_tree_with_codes_of_their_own() -> None:
    errors = [
        value
        for value in (getattr(tenure, name) for name in tenure.__all__)
        if isinstance(value, type) and issubclass(value, tenure.TenureError)
    ]

    assert len(errors) > 20
    assert len({error.code for error in errors}) == len(errors)


def test_importing_tenure_loads_no_store_and_no_event_loop() -> None:
    code = (
        "import sys, tenure; "
        "heavy = {'sqlite3', 'asyncio', 'psycopg', 'msgspec', 'tenure.app'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_application_on_sqlite_loads_no_postgresql_driver() -> None:
    code = (
        "import sys; from tenure import Tenure; app = Tenure('memory://'); app.enqueue('x', {}); "
        "app.close(); sys.exit('psycopg' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
