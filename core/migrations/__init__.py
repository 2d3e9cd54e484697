"""Versions of the database schema, applied in order by Alembic."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection) -> None:
    """Upgrades a connection's database to the newest version."""
    config = Config()
    # Alembic's config interpolates %, which the folder's path may contain.
    folder = str(Path(__file__).parent).replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
