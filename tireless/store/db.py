"""The door to Postgres: connections, pools, error translation, the database's clock; knows no table of ours."""

from __future__ import annotations

import contextlib
import functools
import re
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from types import TracebackType
from typing import ParamSpec, TypeAlias, TypeVar

import psycopg
import stamina
from psycopg import conninfo, sql
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from tireless.errors import ConfigError, StoreError, StoreUnavailable

Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
"""An open connection in autocommit; other rooms hand it on and never call it."""

P = ParamSpec("P")
T = TypeVar("T")
ConnDict: TypeAlias = "dict[str, str | int | None]"

# Below what the URL itself says. A peer that vanished without a word is noticed within 20 to 35 s, well before a
# lease of minutes can run out unseen; both settings are ignored on a local socket.
_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
_PREPARE_AFTER = 2
"""In pools a statement is prepared at its third run: hot ones soon, one-shot ones never."""

_RECONNECT_S = 10.0
"""After this long a pool begins its doubling waits anew: an outage must not outlast itself by minutes."""

_BORROW_S = 20.0
"""How long a caller waits for a free connection of a pool, in seconds."""

# Not by the `options` parameter: poolers refuse it. A forgotten transaction would hold back vacuum for everybody.
SESSION = """
SELECT set_config('TimeZone', 'UTC', false), set_config('idle_in_transaction_session_timeout', '60s', false)
"""


async def connect(url: str, *, autocommit: bool = True, application_name: str) -> Connection:
    """Open one connection; the caller closes it. `application_name` shows in pg_stat_activity.

    StoreUnavailable when the server does not answer or refuses us, ConfigError when the URL does not parse.
    """
    with translate(f"connecting to {shown(url)}"):
        conn = await psycopg.AsyncConnection.connect(_completed(url, application_name), autocommit=True)
        try:
            await _configure(conn)
            await conn.set_autocommit(autocommit)
        except BaseException:
            await conn.close()
            raise
    return conn


class Pool(AsyncConnectionPool[Connection]):
    """Autocommit connections, none that is known to be closed; waiting too long is StoreUnavailable."""

    async def getconn(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109 - psycopg_pool's signature
        """One connection, for `putconn` later; `async with pool.connection()` does both."""
        with translate("waiting for a free database connection"):
            return await super().getconn(timeout)


def pool(url: str, *, min_size: int = 1, max_size: int = 10, application_name: str) -> Pool:
    """A pool not yet open: `async with pool(...) as p`. It opens without a server and reconnects by itself."""
    return Pool(
        _completed(url, application_name),
        kwargs={"autocommit": True, "prepare_threshold": _PREPARE_AFTER},
        min_size=min_size,
        max_size=max_size,
        open=False,
        configure=_configure,
        check=_check,
        timeout=_BORROW_S,
        reconnect_timeout=_RECONNECT_S,
        name=application_name,
    )


async def _check(conn: Connection) -> None:
    """Before a connection is handed out. Asks the server only if it has said something since, such as good-bye.

    A peer that vanished without a word is not noticed here, nor by a question: that would wait for it.
    """
    waiting = select.poll()
    waiting.register(conn.fileno(), select.POLLIN)
    if waiting.poll(0):
        await Pool.check_connection(conn)


@contextlib.asynccontextmanager
async def transaction(conn: Connection, doing: str) -> AsyncIterator[Connection]:
    """A transaction (a savepoint inside one) whose BEGIN and COMMIT errors are translated like any other.

    A StoreUnavailable out of COMMIT leaves open whether it took place: what is written must answer "already" when
    it is written again.
    """
    with translate(doing):
        async with conn.transaction():
            yield conn


async def in_transaction(pool: Pool, work: Callable[[Connection], Awaitable[T]], *, doing: str, tries: int = 4) -> T:
    """Run `work` in a transaction of its own, again after a deadlock, a serialization failure or a lost connection.

    Only for work that may take place twice: the reply to a COMMIT can be lost after it took place.
    """
    async for attempt in stamina.retry_context(
        on=is_retryable, attempts=tries, wait_initial=0.05, wait_max=1.0, wait_jitter=0.1, timeout=None
    ):
        with attempt:
            async with pool.connection() as conn, transaction(conn, doing):
                return await work(conn)
    raise AssertionError("stamina re-raises the last error")


FIRST, LAST = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)
"""The first and the last time that is read: what lies before or after, `-infinity` and `infinity` above all, is read as
these, which any zone can show and hours can be added to. One row must not make a whole list unreadable."""

CLOCK = "SELECT clock_timestamp()"


async def clock(conn: Connection) -> datetime:
    """The database's clock, now, in UTC: the only clock that stored times are compared with."""
    with translate("reading the database's clock"):
        row = await (await conn.execute(CLOCK)).fetchone()
    if row is None or not isinstance(row[0], datetime):
        raise StoreError(f"reading the database's clock gave {row!r}")
    return row[0]


DATABASE_EXISTS = "SELECT 1 FROM pg_database WHERE datname = %(name)s"


async def ensure_database(conn: Connection, name: str) -> None:
    """Create the database `name` on this server unless it is there; two at once are no error."""
    with translate(f"creating the database {name}"):
        if await (await conn.execute(DATABASE_EXISTS, {"name": name})).fetchone():
            return
        with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            await conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


# ------------------------------------------------------------------------------------------------ errors

_TRANSIENT_CLASSES = ("08", "53", "57P", "40001", "40P01", "55P03", "57014", "25P03", "25P04", "25006")
"""Connection, resources, shutdown; serialization, deadlock; lock, statement, idle, transaction timeout; a standby."""

_RETRYABLE_CLASSES = ("08", "57P", "40001", "40P01", "25006")


class Translation:
    """`with translate(doing):` around statements, or `@translate(doing)` on an async function."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Turn psycopg's error into ours; every other one passes."""
        if isinstance(error, psycopg.Error):
            raise _translated(self._doing, error) from error

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[None, None, T]]:
        """The same around each call of an async function."""

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return await function(*args, **kwargs)

        return wrapper


def translate(doing: str) -> Translation:
    """Where psycopg's errors become StoreUnavailable (repeating may help) or StoreError (it will not).

    `doing` opens the message: what was being done, to what ("claiming a job of lane claude").
    """
    return Translation(doing)


def constraint_of(error: BaseException | None) -> str | None:
    """The name of the constraint that refused the row, through any number of `raise … from`; else None."""
    diag = _cause(error)
    return diag.diag.constraint_name if diag else None


def is_retryable(error: Exception) -> bool:
    """Deadlock, serialization failure or lost connection, translated or not; a full pool has waited long enough."""
    cause = _cause(error)
    if cause is None or isinstance(cause, PoolTimeout | PoolClosed):
        return False
    if cause.sqlstate is None:
        return isinstance(cause, psycopg.OperationalError)
    return cause.sqlstate.startswith(_RETRYABLE_CLASSES)


def _cause(error: BaseException | None) -> psycopg.Error | None:
    """The psycopg error at the bottom of a chain of causes."""
    while error is not None and not isinstance(error, psycopg.Error):
        error = error.__cause__
    return error


def _translated(doing: str, error: psycopg.Error) -> StoreError:
    reason = " ".join((error.diag.message_primary or str(error) or type(error).__name__).split()).rstrip(".")
    transient = (
        isinstance(error, psycopg.OperationalError)
        if error.sqlstate is None
        else error.sqlstate.startswith(_TRANSIENT_CLASSES)
    )
    if transient:
        return StoreUnavailable(f"{doing}: the database is out of reach or busy: {reason}. It can be repeated as it is")
    if constraint := constraint_of(error):
        return StoreError(f"{doing}: the constraint {constraint} refused it: {reason}")
    return StoreError(f"{doing}: the database refused it ({error.sqlstate or type(error).__name__}): {reason}")


# ------------------------------------------------------------------------------------------------ values

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def clean_text(text: str) -> str:
    """`text` with U+FFFD for what Postgres refuses in text: NUL and lone surrogates."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_json(value: object) -> object:
    """A JSON value with every string and key cleaned like `clean_text`: jsonb refuses \\u0000 as well."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value


def jsonb(value: object) -> Jsonb:
    """A parameter for a jsonb column, cleaned."""
    return Jsonb(clean_json(value))


# ------------------------------------------------------------------------------------------------ URLs


def shown(url: str) -> str:
    """The URL as messages may show it: who, where, which database; never the password."""
    parts = _parsed(url)
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{parts.get('host') or 'localhost'}{port}/{parts.get('dbname') or ''}"


def with_database(url: str, name: str) -> str:
    """The same server and user, another database (as a connection string, not as a URL)."""
    return conninfo.make_conninfo("", **{**_parsed(url), "dbname": name})


def _completed(url: str, application_name: str) -> str:
    given = {key: value for key, value in _parsed(url).items() if value is not None}
    return conninfo.make_conninfo("", **{**_NETWORK, **given, "application_name": application_name})


def _parsed(url: str) -> ConnDict:
    # Without the cause: libpq quotes the part it could not read, and that may be the password.
    fault = ConfigError(
        "the database URL does not parse; want postgresql://USER:PASSWORD@HOST:5432/DATABASE, "
        "with @ : / % in the password written as %40 %3A %2F %25"
    )
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise fault from None
    if not re.fullmatch(r"[0-9,]*", str(parts.get("port") or "")):  # a / in the password: half of it is now the port
        raise fault
    return parts


class _Moments(Loader):
    """Reads a timestamptz before FIRST or after LAST, also where no datetime could hold it, as these."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        found = psycopg.adapters.get_loader(oid, self.format)
        if found is None:
            raise StoreError(f"psycopg knows no loader for type {oid}: reinstall it")
        self._datetimes = found(oid, context)

    def load(self, data: Buffer) -> object:
        """A datetime in UTC."""
        try:
            return min(max(self._datetimes.load(data), FIRST), LAST)
        except psycopg.DataError:
            text = bytes(data)
            return FIRST if text.startswith(b"-") or text.endswith(b"BC") else LAST


async def _configure(conn: Connection) -> None:
    conn.adapters.register_loader("timestamptz", _Moments)
    await conn.execute(SESSION)
