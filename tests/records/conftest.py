from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from records import RecordStore, open_store
from tests.records.postgres_server import PostgresServer, find_binaries

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    binaries = find_binaries()
    if binaries is None:
        pytest.skip(
            "no PostgreSQL server is installed (looked for initdb on PATH and in /usr/lib/postgresql)"
        )
    server = PostgresServer(binaries)
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """URL of an empty database."""
    name = f"records_{next(_numbers)}"
    engine = sa.create_engine(postgres_server.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return postgres_server.url(name)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/folder/records.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(url: str) -> Iterator[RecordStore]:
    with open_store(url) as opened:
        yield opened
