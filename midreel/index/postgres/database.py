"""Connections to PostgreSQL: transactions that survive a lost connection, and errors without secrets.

The URL never holds a password. libpq reads it from the environment variable PGPASSWORD, or from the password file that
PGPASSFILE names (~/.pgpass by default). This is the only module that connects.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
from psycopg import errors as pg

from midreel.errors import BadIndex, BadSetting, Locked, MidreelError, Unreachable, Unwritable

T = TypeVar("T")
Connection = psycopg.Connection[Any]
Work = Callable[[Connection], T]

SCHEMES = ("postgresql", "postgres")
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)  # seconds before each new attempt; the last one repeats
_SETTINGS = (
    "SET jit = off",  # compiling a statement takes longer than a search
    "SET work_mem = '64MB'",  # the best score of each window is grouped in memory
    "SET plan_cache_mode = force_custom_plan",  # a plan for any number of ids fits none
    "SET client_encoding = 'UTF8'",
)
_HIDDEN = "***"


class Pool:
    """A database whose connections are opened when needed, and kept.

    A lost connection is replaced and the work is repeated, until `patience` is over.

    Args:
        url: postgresql://USER@HOST/DATABASE, without a password. All parameters of libpq can follow.
        size: The maximum number of connections.
        patience: The seconds to wait for a server that does not answer, and for a free connection.
        schema: The schema in which tables are looked up first.

    Attributes:
        place: The server and the database, for messages.
        patience: The seconds to wait.

    Raises:
        BadSetting: The URL cannot be read, or holds a password.
    """

    def __init__(self, url: str, *, size: int = 8, patience: float = 5.0, schema: str | None = None) -> None:
        check_url(url)
        self.place, self._url, self.patience = shown(url), url, patience
        path = () if schema is None else (f'SET search_path = {schema}, "$user", public',)
        self._settings = (*_SETTINGS, *path)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(size)
        self._is_closed = False

    def run(self, work: Work[T], *, snapshot: bool = False, repeatable: bool = True) -> T:
        """Run work in one transaction, and commit it.

        Args:
            work: A function of a connection. It may run several times, each time in a new transaction.
            snapshot: Whether all its statements see the same state. It must not write then.
            repeatable: Whether it may run again if the connection is lost while it is committed.

        Raises:
            Unreachable: The server does not answer.
            Locked: Other writers hold the same rows for too long.
            Unwritable: The server's disk is full, or the server is read-only.
            BadIndex: Any other error of the server.
        """
        deadline, attempt = time.monotonic() + self.patience, 0
        while True:
            committing = False
            try:
                # A pipeline sends statements together until a result is read. COPY cannot be a part of one.
                with self._connection() as connection, connection.pipeline() if snapshot else nullcontext():
                    with connection.transaction():
                        if snapshot:
                            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                        found = work(connection)
                        committing = True
                    return found
            except (psycopg.Error, Unreachable, Locked) as error:  # `Joined` in the work has translated its errors
                kind = _kind(error) if isinstance(error, psycopg.Error) else type(error)
                again = issubclass(kind, Unreachable | Locked) and not (committing and not repeatable)
                if not again or time.monotonic() >= deadline or _is_final(error):
                    raise (translated(error, self.place) if isinstance(error, psycopg.Error) else error) from None
                if kind is Unreachable:
                    self.close_idle()  # a server that has restarted has ended all of them
            time.sleep(min(_PAUSES[min(attempt, len(_PAUSES) - 1)], max(0.0, deadline - time.monotonic())))
            attempt += 1

    def outside(self, statement: str) -> None:
        """Run a statement that cannot run in a transaction."""
        with database_errors(self.place), self._connection() as connection:
            connection.autocommit = True
            try:
                connection.execute(statement.encode())
            finally:
                if not connection.closed:
                    connection.autocommit = False

    def close(self) -> None:
        """Close all connections. Those in use are closed when they are returned."""
        self._is_closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Take a connection, and return it unless it is broken."""
        if not self._free.acquire(timeout=self.patience):
            raise Locked(f"all connections to {self.place} are in use. Try again later, or allow more connections.")
        try:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._connected()
            try:
                yield connection
            finally:
                with self._lock:
                    keep = not (connection.closed or connection.broken or self._is_closed)
                    if keep and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                        self._idle.append(connection)
                    else:
                        keep = False
                if not keep:
                    connection.close()
        finally:
            self._free.release()

    def _connected(self) -> Connection:
        # A transaction is opened by `run`, so statements outside one commit on their own.
        connection: Connection = psycopg.connect(
            self._url, connect_timeout=max(2, int(self.patience)), application_name="midreel", autocommit=False
        )
        try:
            for setting in self._settings:
                connection.execute(setting.encode())
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection


class Joined:
    """A database whose work joins a transaction of the caller, who commits it.

    Each work runs in a savepoint: if it fails, the caller's transaction is as before. Nothing is repeated.

    Args:
        connection: An open connection.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.place = f"database {connection.info.dbname}"

    def run(self, work: Work[T], *, snapshot: bool = False, repeatable: bool = True) -> T:
        """Run work in a savepoint of the caller's transaction. See `Pool.run` for the errors.

        Args:
            work: A function of a connection.
            snapshot: No effect: the caller chooses the isolation.
            repeatable: No effect: nothing is repeated.
        """
        with database_errors(self.place):
            if not self._connection.autocommit:
                self._connection.execute("SELECT")  # begins the caller's transaction, if this is its first statement
            with self._connection.transaction():
                return work(self._connection)

    def outside(self, statement: str) -> None:
        """Raise BadSetting."""
        raise BadSetting(f"{statement.split()[0]} cannot run in a transaction. Call it on the index itself.")

    def close(self) -> None:
        """Do nothing: the connection belongs to the caller."""


Database = Pool | Joined


def check_url(url: str) -> None:
    """Raise BadSetting unless a URL names a PostgreSQL database and holds no password."""
    # The message never quotes the URL: a malformed one may hold a password anywhere.
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None or any(
            key in ("password", "sslpassword") for key in parse_qs(parts.query)
        )
    except ValueError:
        raise BadSetting("the URL of the database cannot be read, expected postgresql://USER@HOST/DATABASE.") from None
    if parts.scheme not in SCHEMES:
        raise BadSetting("the URL of the database has another scheme, expected postgresql://USER@HOST/DATABASE.")
    if has_password:
        raise BadSetting("the URL of the database holds a password. Put it into PGPASSWORD or a PGPASSFILE instead.")
    try:
        psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise BadSetting("the URL of the database cannot be read, expected postgresql://USER@HOST/DATABASE.") from None


def shown(url: str) -> str:
    """Return what messages say about a URL: the server and the database.

    >>> shown("postgresql://me@db.example:5433/films?sslmode=require")
    'postgresql://db.example:5433/films'
    """
    parts = urlsplit(url)
    host = parts.hostname or unquote(parse_qs(parts.query).get("host", ["localhost"])[0])
    port = f":{parts.port}" if parts.port else ""
    return f"postgresql://{host}{port}{parts.path}"


@contextmanager
def database_errors(place: str) -> Iterator[None]:
    """Turn errors of psycopg into those of midreel.

    Args:
        place: The server, for the message.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, place) from None  # the original may quote parameters of the connection


def translated(error: psycopg.Error, place: str) -> MidreelError:
    """Return an error of psycopg as one of midreel, without secrets.

    Args:
        error: The error.
        place: The server, for the message.
    """
    kind, text = _kind(error), scrubbed(str(error).strip().split("\n")[0])
    remedy = {
        Unreachable: "Start the server, or try again later.",
        Locked: "Try again later.",
        Unwritable: "Free space on the server, or use its primary.",
    }.get(kind, "Open the index again, or rebuild it.")
    return kind(f"{place}: {text or type(error).__name__}. {remedy}")


def scrubbed(text: str) -> str:
    """Return a text without the password in the environment."""
    secret = os.environ.get("PGPASSWORD", "")
    return text.replace(secret, _HIDDEN) if secret else text


_LOST = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.IdleInTransactionSessionTimeout,
    pg.TooManyConnections,
)
_BUSY = (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure)


def _kind(error: psycopg.Error) -> type[MidreelError]:
    state = error.sqlstate or ""
    if isinstance(error, _BUSY):
        return Locked
    if isinstance(error, pg.DiskFull | pg.ReadOnlySqlTransaction) or "could not extend file" in str(error):
        return Unwritable  # a quota or a limit of file sizes has no code of its own
    # Without a code, the client itself has found that it is not connected.
    if isinstance(error, _LOST) or state.startswith(("08", "28")) or (not state and _is_connection(error)):
        return Unreachable
    return BadIndex


def _is_connection(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def _is_final(error: psycopg.Error | MidreelError) -> bool:
    """Return whether trying again cannot help: the server has no such database, or refuses this user or password."""
    text = str(error)
    is_refused = (getattr(error, "sqlstate", None) or "").startswith("28") or "authentication failed" in text
    return is_refused or ("FATAL" in text and "does not exist" in text)
