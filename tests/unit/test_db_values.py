"""What the store's door does without a server: URLs, unstorable text, the names of errors."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg_pool import PoolTimeout

from tireless.errors import ConfigError, LeaseLost, StoreError, StoreUnavailable
from tireless.store.db import clean_json, clean_text, constraint_of, is_retryable, shown, translate, with_database


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_text_that_postgres_refuses_is_replaced(text: str) -> None:
    """NUL and lone surrogates become U+FFFD, so that nothing else of the text is lost."""
    assert clean_text(text) == "a\ufffdb"


def test_text_that_postgres_takes_stays() -> None:
    """Other control characters and everything beyond the basic plane are left alone."""
    assert clean_text("a\x01\x7f\t😀é") == "a\x01\x7f\t😀é"


def test_json_is_cleaned_at_any_depth() -> None:
    """jsonb refuses \\u0000 in keys and strings alike; what is no string stays."""
    assert json.dumps(clean_json({"a\0": ["b\0", {"c": "\ud800"}, 1, None, True, (2.5,)]}), ensure_ascii=False) == (
        '{"a\ufffd": ["b\ufffd", {"c": "\ufffd"}, 1, null, true, [2.5]]}'
    )


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:s3cret@db:6000/jobs?sslmode=require", "host=db port=6000 user=me password=s3cret dbname=jobs"],
)
def test_a_shown_url_has_no_password(url: str) -> None:
    """Messages say who, where and which database, whichever way the URL was written."""
    assert shown(url) == "postgresql://me@db:6000/jobs"


def test_another_database_keeps_the_rest() -> None:
    """User, password, host and parameters stay."""
    parts = psycopg.conninfo.conninfo_to_dict(with_database("postgresql://me:a%40b@db/jobs?sslmode=require", "other"))
    assert parts == {"user": "me", "password": "a@b", "host": "db", "dbname": "other", "sslmode": "require"}


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:s3cret%zz@db/jobs", "postgresql://me:s3cret/half@db/jobs", "postgresql://me:s3cret@db:http/x"],
)
def test_a_url_that_does_not_parse_is_not_quoted(url: str) -> None:
    """libpq quotes the part it could not read, which may be the password: neither message nor cause may hold it."""
    with pytest.raises(ConfigError) as caught:
        shown(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "%40" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (psycopg.OperationalError("the connection is closed"), StoreUnavailable, True),
        (psycopg.errors.AdminShutdown("57P01"), StoreUnavailable, True),
        (psycopg.errors.CannotConnectNow("57P03"), StoreUnavailable, True),
        (psycopg.errors.ConnectionFailure("08006"), StoreUnavailable, True),
        (psycopg.errors.SerializationFailure("40001"), StoreUnavailable, True),
        (psycopg.errors.DeadlockDetected("40P01"), StoreUnavailable, True),
        (psycopg.errors.ReadOnlySqlTransaction("25006"), StoreUnavailable, True),
        (psycopg.errors.TooManyConnections("53300"), StoreUnavailable, False),
        (psycopg.errors.LockNotAvailable("55P03"), StoreUnavailable, False),
        (psycopg.errors.QueryCanceled("57014"), StoreUnavailable, False),
        (PoolTimeout("no connection after 20 s"), StoreUnavailable, False),
        (psycopg.errors.UniqueViolation("23505"), StoreError, False),
        (psycopg.errors.UndefinedTable("42P01"), StoreError, False),
        (psycopg.errors.InsufficientPrivilege("42501"), StoreError, False),
        (psycopg.ProgrammingError("the query has 1 placeholder"), StoreError, False),
        (psycopg.InterfaceError("cursor closed"), StoreError, False),
    ],
)
def test_errors_are_told_apart(error: psycopg.Error, kind: type[StoreError], retryable: bool) -> None:
    """Transient or not, and whether idempotent work may simply be done again; the cause is kept."""
    with pytest.raises(StoreError) as caught, translate("claiming a job of lane claude"):
        raise error
    assert type(caught.value) is kind
    assert str(caught.value).startswith("claiming a job of lane claude: ")
    assert caught.value.__cause__ is error
    assert is_retryable(caught.value) is retryable
    assert is_retryable(error) is retryable


async def test_an_async_function_can_be_decorated() -> None:
    """The decorator translates what the awaited function raises and returns what it returns."""

    @translate("reading lanes")
    async def work(n: int) -> int:
        if n:
            raise psycopg.OperationalError("gone")
        return 7

    assert await work(0) == 7
    with pytest.raises(StoreUnavailable, match="reading lanes"):
        await work(1)


def test_other_errors_pass() -> None:
    """Our own errors and programming errors are not dressed up as the database's."""
    with pytest.raises(LeaseLost), translate("settling"):
        raise LeaseLost("token 5 lost")
    with pytest.raises(ZeroDivisionError), translate("settling"):
        raise ZeroDivisionError
    assert constraint_of(LeaseLost("x")) is None
    assert not is_retryable(LeaseLost("x"))
