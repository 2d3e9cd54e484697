"""Adds columns for a run's title, tags, notes and tokens per step."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("title", sa.Text(), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("tags", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("runs", sa.Column("notes", sa.Text(), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("tokens_per_step", sa.Double()))


def downgrade() -> None:
    for column in ("tokens_per_step", "notes", "tags", "title"):
        op.drop_column("runs", column)
