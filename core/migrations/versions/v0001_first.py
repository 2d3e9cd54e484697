"""Creates the first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "settings",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("position", sa.Integer(), nullable=False, index=True),
        sa.Column("stage", sa.String(32), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("started", sa.Double()),
        sa.Column("ended", sa.Double()),
        sa.Column("pid", sa.Integer()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("signal", sa.Integer()),
        sa.Column("done", sa.Double(), nullable=False),
        sa.Column("total", sa.Double()),
        sa.Column("unit", sa.String(32), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("eta_seconds", sa.Double()),
        sa.Column("error", sa.JSON()),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("results", sa.JSON(), nullable=False),
        sa.Column("event_number", _NUMBER, nullable=False),
        sa.Column("event_offset", _NUMBER, nullable=False),
        sa.Column("metric_counts", sa.JSON(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("attempt_number", _NUMBER, nullable=False),
    )
    op.create_table(
        "metrics",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("point", _NUMBER, nullable=False),
        sa.Column("step", _NUMBER, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
    )
    op.create_index("metrics_once", "metrics", ["run_id", "number", "name"], unique=True)
    op.create_index("metrics_by_run", "metrics", ["run_id", "id"])
    op.create_index("metrics_by_point", "metrics", ["run_id", "name", "point"])
    op.create_table(
        "artifacts",
        sa.Column("path", sa.String(1024), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False, index=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False, index=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
    )
    op.create_table(
        "requests",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("handled", sa.Double(), index=True),
        sa.Column("error", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    for table in ("requests", "artifacts", "metrics", "runs", "settings"):
        op.drop_table(table)
