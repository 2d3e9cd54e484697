"""Converts system and database errors into StudioError."""

from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import StudioError, from_os_error


@contextmanager
def explaining_refusals() -> Iterator[None]:
    """Converts system and database errors, except broken pipes."""
    try:
        yield
    except (StudioError, BrokenPipeError):
        raise
    except OSError as error:
        raise from_os_error(error) from error
    except Exception as error:
        # Importing SQLAlchemy takes 0.2 s.
        from core.store import explain_database_error

        explained = explain_database_error(error)
        if explained is None:
            raise
        raise explained from error
