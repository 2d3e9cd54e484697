"""Which ids the Hugging Face Hub accepts, decided before anything is sent or queued."""

from __future__ import annotations

from core.errors import ConfigError

# The Hub refuses these endings too; huggingface_hub knows of the first alone.
_REFUSED_ENDINGS = (".git", ".ipynb")


def flaw_of_hub_id(repo_id: str) -> str:
    """Returns why the Hub refuses an id like `owner/name` or `name`, or an empty text."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if not repo_id.isascii():
        return "has letters other than a to z"
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        return str(error).partition(": '")[0].rstrip(".:")
    if repo_id.lower().endswith(_REFUSED_ENDINGS):
        return "ends in " + " or ".join(_REFUSED_ENDINGS)
    return ""


def check_hub_id(repo_id: str, *, field: str = "") -> None:
    """Refuses an id that the Hub refuses. Asks nobody.

    Raises:
        ConfigError: With the reason, and the field's name.
    """
    if flaw := flaw_of_hub_id(repo_id):
        raise ConfigError(
            f"{ascii(repo_id)[1:-1][:120]!r} can't be a repository's id on the Hub",
            expected="owner/name or name: up to 96 letters, digits, and . _ - within; without "
            "-- and .., and not ending in .git",
            received=flaw,
            fix="choose another id",
            field=field,
        )
