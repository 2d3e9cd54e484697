"""The database of runs, metrics, artifacts and requests.

Only the worker writes; others read and insert requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Double,
    Engine,
    Index,
    Integer,
    String,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import (
    ArgumentError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from core.errors import ConfigError, RunError, StudioError
from core.stages.registry import is_resumable, keeps_parts
from core.workspace.locks import file_lock
from core.workspace.places import check_not_moved, is_shared
from core.workspace.workspace import Workspace

HEAD = "0003"
DATABASE_FILE = "studio.db"
DATABASE_URL_VARIABLE = "STUDIO_DATABASE_URL"
BUSY_TIMEOUT_SECONDS = 30.0

ACTIVE_STATES = ("running", "stopping")
ENDED_STATES = ("stopped", "done", "failed", "lost")
# Setting with the addresses of all targets that runs have had.
USED_TARGETS = "used_targets"


_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


class _Base(DeclarativeBase):
    type_annotation_map = {
        dict[str, Any]: JSON,
        list[str]: JSON,
        list[dict[str, Any]]: JSON,
        float: Double,
        str: Text,
    }


class RunRow(_Base):
    """One run of a stage; times are unix seconds.

    `event_number` and `event_offset` mark the ingested events, `attempt_number` those before the
    current attempt.
    """

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    position: Mapped[int] = mapped_column(index=True)
    stage: Mapped[str] = mapped_column(String(32))
    name: Mapped[str] = mapped_column(String(128), default="")
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str] = mapped_column(String(64), default="")
    config: Mapped[dict[str, Any]]
    after: Mapped[list[str]]
    artifact: Mapped[str] = mapped_column(default="")
    created: Mapped[float]
    started: Mapped[float | None] = mapped_column(default=None)
    ended: Mapped[float | None] = mapped_column(default=None)
    pid: Mapped[int | None] = mapped_column(default=None)
    exit_code: Mapped[int | None] = mapped_column(default=None)
    signal: Mapped[int | None] = mapped_column(default=None)
    done: Mapped[float] = mapped_column(default=0.0)
    total: Mapped[float | None] = mapped_column(default=None)
    unit: Mapped[str] = mapped_column(String(32), default="")
    note: Mapped[str] = mapped_column(default="")
    eta_seconds: Mapped[float | None] = mapped_column(default=None)
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON, default=None)
    warnings: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    results: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    event_number: Mapped[int] = mapped_column(_NUMBER, default=0)
    event_offset: Mapped[int] = mapped_column(_NUMBER, default=0)
    metric_counts: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    attempt: Mapped[int] = mapped_column(default=1)
    attempt_number: Mapped[int] = mapped_column(_NUMBER, default=0)
    # Mirror address and newest phase.
    remote: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    # Written by the user.
    title: Mapped[str] = mapped_column(default="")
    tags: Mapped[list[str]] = mapped_column(JSON, default=list)
    notes: Mapped[str] = mapped_column(default="")
    tokens_per_step: Mapped[float | None] = mapped_column(default=None)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def why(self) -> str:
        """The reason of the state, or what a queued run waits for, in words."""
        return (self.note if self.state == "queued" else "") or self.reason

    @property
    def saves(self) -> bool:
        """True if the stage is resumable."""
        return is_resumable(self.stage)

    @property
    def keeps_parts(self) -> bool:
        """True if the stage continues after finished parts."""
        return keeps_parts(self.stage)


class MetricRow(_Base):
    """One value of a metric.

    Attributes:
        point: Index among the metric's values.
    """

    __tablename__ = "metrics"
    __table_args__ = (
        Index("metrics_once", "run_id", "number", "name", unique=True),
        Index("metrics_by_run", "run_id", "id"),
        Index("metrics_by_point", "run_id", "name", "point"),
    )

    id: Mapped[int] = mapped_column(_NUMBER, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(String(64))
    number: Mapped[int] = mapped_column(_NUMBER)
    point: Mapped[int] = mapped_column(_NUMBER)
    step: Mapped[int] = mapped_column(_NUMBER)
    name: Mapped[str] = mapped_column(String(64))
    value: Mapped[float]
    time: Mapped[float]


class ArtifactRow(_Base):
    """An artifact made by a run."""

    __tablename__ = "artifacts"

    path: Mapped[str] = mapped_column(String(1024), primary_key=True)
    kind: Mapped[str] = mapped_column(String(32), index=True)
    name: Mapped[str] = mapped_column(String(128))
    fingerprint: Mapped[str] = mapped_column(String(64))
    run_id: Mapped[str] = mapped_column(String(64), index=True)
    created: Mapped[float]
    counts: Mapped[dict[str, Any]]


class RequestRow(_Base):
    """A request to the worker, such as `submit`."""

    __tablename__ = "requests"

    id: Mapped[int] = mapped_column(_NUMBER, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(16))
    payload: Mapped[dict[str, Any]]
    created: Mapped[float]
    handled: Mapped[float | None] = mapped_column(default=None, index=True)
    error: Mapped[str] = mapped_column(default="")


class SettingRow(_Base):
    """A workspace setting."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str]


class _Sessions(sessionmaker[Session]):
    """Refuses to open a moved workspace's database."""

    def __init__(self, engine: Engine, root: Path | None) -> None:
        super().__init__(engine, expire_on_commit=False)
        self._root = root

    def __call__(self, **named: Any) -> Session:
        if self._root is not None:
            check_not_moved(self._root)
        return super().__call__(**named)


class Store:
    """Queries one workspace's database. Thread-safe."""

    def __init__(self, engine: Engine, root: Path | None = None) -> None:
        self.engine = engine
        self.session: sessionmaker[Session] = _Sessions(engine, root)

    @classmethod
    def open(cls, workspace: Workspace) -> Store:
        """Opens the workspace's database, creating or migrating it.

        Raises:
            ConfigError: STUDIO_DATABASE_URL is invalid.
            StudioError: Unreachable, newer or another workspace's.
        """
        store = cls(create_database_engine(database_url(workspace)), workspace.root)
        try:
            if store.version() != HEAD:
                store.upgrade(workspace)
            store.check_owner(workspace)
        except SQLAlchemyError as error:
            raise _explained(error, "The database can't be opened") from error
        return store

    def version(self) -> str:
        """Returns the schema version; "" without tables."""
        try:
            with self.engine.connect() as connection:
                return str(connection.scalar(text("SELECT version_num FROM alembic_version")) or "")
        except (OperationalError, ProgrammingError):
            return ""

    def upgrade(self, workspace: Workspace) -> None:
        """Migrates the tables to the newest version."""
        from core import migrations

        with file_lock(workspace.root / "database.lock"):
            version = self.version()
            if version == HEAD:
                return
            if version > HEAD:
                raise StudioError(
                    "The database was written by a newer version of Pretrain Studio",
                    expected=f"version {HEAD} or older",
                    received=f"version {version}",
                    fix="update Pretrain Studio, or use another workspace",
                )
            with self.engine.begin() as connection:
                migrations.upgrade(connection)

    def check_owner(self, workspace: Workspace) -> None:
        """Refuses a server's database that another workspace uses."""
        if self.engine.dialect.name == "sqlite":
            return
        with self.session.begin() as session:
            owner = session.get(SettingRow, "workspace")
            if owner is None:
                session.add(SettingRow(name="workspace", value=str(workspace.root)))
            elif owner.value != str(workspace.root):
                raise StudioError(
                    f"The database of {DATABASE_URL_VARIABLE} belongs to another workspace",
                    expected=owner.value,
                    received=str(workspace.root),
                    fix="use a separate database for each workspace",
                )

    def close(self) -> None:
        self.engine.dispose()

    def add_request(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Adds a request; returns its number."""
        with self.session.begin() as session:
            row = RequestRow(kind=kind, payload=dict(payload), created=time.time())
            session.add(row)
            session.flush()
            return row.id

    def get_request(self, number: int) -> RequestRow | None:
        with self.session() as session:
            return session.get(RequestRow, number)

    def list_runs(
        self, *, limit: int = 200, states: Sequence[str] = (), before: int | None = None
    ) -> list[RunRow]:
        """Lists runs queued before a position, newest first."""
        query = select(RunRow).order_by(RunRow.position.desc()).limit(limit)
        if states:
            query = query.where(RunRow.state.in_(states))
        if before is not None:
            query = query.where(RunRow.position < before)
        with self.session() as session:
            return list(session.scalars(query))

    def list_ended(self, limit: int) -> list[RunRow]:
        ended = func.coalesce(RunRow.ended, RunRow.created)
        query = select(RunRow).where(RunRow.state.in_(ENDED_STATES)).order_by(ended.desc())
        with self.session() as session:
            return list(session.scalars(query.limit(limit)))

    def count_runs(self, states: Sequence[str]) -> int:
        query = select(func.count()).select_from(RunRow).where(RunRow.state.in_(states))
        with self.session() as session:
            return session.scalar(query) or 0

    def get_run(self, run_id: str) -> RunRow | None:
        with self.session() as session:
            return session.get(RunRow, run_id)

    def find_run(self, run_id: str) -> RunRow:
        """Finds a run by id or unique prefix; raises RunError."""
        if row := self.get_run(run_id):
            return row
        with self.session() as session:
            query = select(RunRow).where(RunRow.id.startswith(run_id, autoescape=True)).limit(5)
            matches = list(session.scalars(query)) if run_id else []
        if len(matches) == 1:
            return matches[0]
        raise RunError(
            f"{run_id!r} matches several runs" if matches else f"The run {run_id!r} was not found",
            expected="a run's id" if not matches else "a unique beginning of an id",
            received=run_id if not matches else ", ".join(row.id for row in matches),
            fix="list the runs with: python -m core runs list",
        )

    def has_runs(self) -> bool:
        """Returns whether any run was ever submitted."""
        with self.session() as session:
            known = session.scalar(select(RunRow.id).limit(1))
            asked = session.scalar(
                select(RequestRow.id).where(RequestRow.kind == "submit").limit(1)
            )
        return known is not None or asked is not None

    def metrics_since(
        self,
        run_id: str,
        after: int = 0,
        *,
        names: Sequence[str] = (),
        limit: int = 20_000,
    ) -> list[MetricRow]:
        """Returns metrics above an event number, the last event complete.

        SQLite reuses row ids, so they can't mark the position.
        """
        wanted = [MetricRow.run_id == run_id, MetricRow.number > after]
        if names:
            wanted.append(MetricRow.name.in_(names))
        numbers = select(MetricRow.number).where(*wanted).order_by(MetricRow.number)
        rows = select(MetricRow).where(*wanted).order_by(MetricRow.number, MetricRow.id)
        with self.session() as session:
            last = session.scalar(numbers.offset(limit - 1).limit(1))
            if last is not None:
                rows = rows.where(MetricRow.number <= last)
            return list(session.scalars(rows))

    def sample_metrics(
        self, run_id: str, names: Sequence[str], most_per_name: int
    ) -> tuple[dict[str, list[tuple[int, float]]], int]:
        """Downsamples curves, keeping the newest point.

        Returns:
            `{name: [(step, value), ...]}`, and the number for `metrics_since`.
        """
        with self.session() as session:
            newest = session.scalar(
                select(func.max(MetricRow.number)).where(MetricRow.run_id == run_id)
            )
            counts = session.scalar(select(RunRow.metric_counts).where(RunRow.id == run_id)) or {}
            curves = {
                name: _sample(session, run_id, name, int(counts[name]), most_per_name)
                for name in names
                if counts.get(name)
            }
        return curves, newest or 0

    def latest_metrics(self, run_id: str, names: Sequence[str] | None = None) -> dict[str, float]:
        """Returns the newest value of each metric."""
        with self.session() as session:
            counts = session.scalar(select(RunRow.metric_counts).where(RunRow.id == run_id)) or {}
            return {
                name: _sample(session, run_id, name, int(count), 1)[-1][1]
                for name, count in counts.items()
                if names is None or name in names
            }

    def list_artifacts(self, kind: str = "") -> list[ArtifactRow]:
        query = select(ArtifactRow).order_by(ArtifactRow.created.desc())
        if kind:
            query = query.where(ArtifactRow.kind == kind)
        with self.session() as session:
            return list(session.scalars(query))

    def pending_requests(self) -> list[RequestRow]:
        query = select(RequestRow).where(RequestRow.handled.is_(None)).order_by(RequestRow.id)
        with self.session() as session:
            return list(session.scalars(query))

    def get_setting(self, name: str) -> str:
        """Returns a workspace setting, or ""."""
        with self.session() as session:
            return session.scalar(select(SettingRow.value).where(SettingRow.name == name)) or ""

    # For the worker only.

    def set_setting(self, name: str, value: str) -> None:
        with self.session.begin() as session:
            session.merge(SettingRow(name=name, value=value))

    def add_run(self, row: RunRow) -> bool:
        """Queues a run; returns False if it exists."""
        with self.session.begin() as session:
            if session.get(RunRow, row.id):
                return False
            last = session.scalar(select(func.max(RunRow.position))) or 0
            row.position = last + 1
            session.add(row)
            return True

    def update_run(self, run_id: str, **values: Any) -> None:
        with self.session.begin() as session:
            session.execute(update(RunRow).where(RunRow.id == run_id).values(**values))

    def ingest(
        self,
        run_id: str,
        metrics: Iterable[Mapping[str, Any]],
        artifacts: Iterable[Mapping[str, Any]],
        values: Mapping[str, Any],
        *,
        rewound_to: int | None = None,
    ) -> dict[str, int]:
        """Writes events and their end position in one transaction.

        Args:
            rewound_to: Step resumed from; later metrics are deleted.

        Returns:
            The number of points by metric.
        """
        with self.session.begin() as session:
            if rewound_to is not None:
                session.execute(
                    delete(MetricRow).where(MetricRow.run_id == run_id, MetricRow.step > rewound_to)
                )
            counts = _metric_counts(session, run_id, recount=rewound_to is not None)
            points = []
            for row in metrics:
                point = counts.get(row["name"], 0)
                counts[row["name"]] = point + 1
                points.append({"run_id": run_id, "point": point, **row})
            if points:
                session.execute(insert(MetricRow), points)
            for row in artifacts:
                session.merge(ArtifactRow(run_id=run_id, **row))
            session.execute(
                update(RunRow).where(RunRow.id == run_id).values(metric_counts=counts, **values)
            )
        return counts

    def requeue(self, run_id: str, **values: Any) -> None:
        with self.session.begin() as session:
            last = session.scalar(select(func.max(RunRow.position))) or 0
            row = session.get_one(RunRow, run_id)
            row.position = last + 1
            row.attempt += 1
            row.attempt_number = row.event_number
            row.state = "queued"
            row.started = row.ended = row.eta_seconds = None
            row.note = ""
            if not row.saves:
                row.done = 0
            row.exit_code = row.signal = row.pid = row.error = None
            for name, value in values.items():
                setattr(row, name, value)

    def finish_request(self, number: int, error: str = "") -> None:
        with self.session.begin() as session:
            session.execute(
                update(RequestRow)
                .where(RequestRow.id == number)
                .values(handled=time.time(), error=error)
            )

    def remove_artifact(self, path: str) -> None:
        with self.session.begin() as session:
            session.execute(delete(ArtifactRow).where(ArtifactRow.path == path))

    def remove_run(self, run_id: str) -> None:
        with self.session.begin() as session:
            session.execute(delete(MetricRow).where(MetricRow.run_id == run_id))
            session.execute(delete(RunRow).where(RunRow.id == run_id))


def _sample(
    session: Session, run_id: str, name: str, count: int, most: int
) -> list[tuple[int, float]]:
    query = (
        select(MetricRow.step, MetricRow.value)
        .where(MetricRow.run_id == run_id, MetricRow.name == name)
        .order_by(MetricRow.point)
    )
    if count > most:
        stride = -(-count // most)
        query = query.where(MetricRow.point.in_(range(count - 1, -1, -stride)))
    return [(int(row.step), float(row.value)) for row in session.execute(query)]


def _metric_counts(session: Session, run_id: str, *, recount: bool) -> dict[str, int]:
    if not recount:
        counts = session.scalar(select(RunRow.metric_counts).where(RunRow.id == run_id))
        return dict(counts or {})
    query = (
        select(MetricRow.name, func.max(MetricRow.point).label("last"))
        .where(MetricRow.run_id == run_id)
        .group_by(MetricRow.name)
    )
    return {row.name: row.last + 1 for row in session.execute(query)}


def database_url(workspace: Workspace) -> str | URL:
    if url := os.environ.get(DATABASE_URL_VARIABLE):
        return url
    workspace.make_root()
    _make_database(workspace.root / DATABASE_FILE)
    # In a string, a ? would end the path.
    return URL.create("sqlite", database=str(workspace.root / DATABASE_FILE))


def _make_database(path: Path) -> None:
    """Creates a database, private unless shared; SQLite copies its mode."""
    mode = 0o666 if is_shared(path.parent) else 0o600
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))


def create_database_engine(url: str | URL) -> Engine:
    """Creates SQLAlchemy's engine with pragmas; raises ConfigError."""
    is_sqlite = str(url).startswith("sqlite")
    options: dict[str, Any] = {"pool_pre_ping": True}
    if is_sqlite:
        options = {"connect_args": {"timeout": BUSY_TIMEOUT_SECONDS}}
    try:
        engine = create_engine(url, **options)
    except (ArgumentError, ImportError, ValueError) as error:
        # The original message may hold the password.
        raise _wrong_url(url, error) from None
    if is_sqlite:
        event.listen(engine, "connect", _set_pragmas)
    return engine


def explain_database_error(error: Exception) -> StudioError | None:
    """Converts a database error; None for any other."""
    if isinstance(error, OperationalError):
        return _explained(error, "The database can't be read or written")
    return None


def _explained(error: SQLAlchemyError, problem: str) -> StudioError:
    # SQLAlchemy's text may hold the password.
    cause = str(getattr(error, "orig", None) or type(error).__name__).strip().splitlines()[0]
    return StudioError(
        problem,
        expected=f"{DATABASE_FILE} in the workspace, or a server at {DATABASE_URL_VARIABLE}",
        received=cause,
        fix="check the workspace folder; for a server, check that it is running and its address",
    )


def _wrong_url(url: str | URL, error: Exception) -> ConfigError:
    beginning = f"an address that begins with {str(url).partition(':')[0]}://"
    if isinstance(error, NoSuchModuleError):
        received = f"{beginning}, which is an unknown database type"
    elif isinstance(error, ImportError):
        received = f"{beginning}; its driver isn't installed"
    else:
        received = "an address that can't be parsed"
    return ConfigError(
        f"The address in {DATABASE_URL_VARIABLE} can't be used",
        expected="an address like postgresql+psycopg://user:password@host/database",
        received=received,
        fix="correct the address; for PostgreSQL: pip install -r requirements-postgres.txt",
    )


def _set_pragmas(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()
