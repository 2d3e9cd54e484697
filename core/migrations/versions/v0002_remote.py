"""Adds the column for runs on other machines."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("runs", sa.Column("remote", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("runs", "remote")
