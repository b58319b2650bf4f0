"""The names users import: all there, and cheap until they are needed."""

import subprocess
import sys
from pathlib import Path

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


@pytest.mark.process
def test_importing_tenure_loads_no_store_and_no_event_loop() -> None:
    code = (
        "import sys, tenure; "
        "heavy = {'sqlite3', 'asyncio', 'psycopg', 'msgspec', 'tenure.app'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.process
def test_an_application_on_sqlite_loads_no_postgresql_driver(tmp_path: Path) -> None:
    code = (
        "import sys; from tenure import Tenure; app = Tenure(sys.argv[1]); app.enqueue('x', {}); "
        "app.close(); sys.exit('sqlite3' not in sys.modules or 'psycopg' in sys.modules)"
    )
    file = tmp_path / "tenure.db"

    subprocess.run([sys.executable, "-c", code, f"sqlite:///{file}"], check=True)

    assert file.stat().st_size
