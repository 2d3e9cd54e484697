"""Validates ids for the Hugging Face Hub offline."""

from __future__ import annotations

from core.errors import ConfigError

# The Hub refuses both; huggingface_hub only knows the first.
_REFUSED_ENDINGS = (".git", ".ipynb")


def flaw_of_hub_id(repo_id: str) -> str:
    """Returns why the Hub refuses an id; "" if valid."""
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
    """Raises ConfigError for an invalid id, offline."""
    if flaw := flaw_of_hub_id(repo_id):
        raise ConfigError(
            f"{ascii(repo_id)[1:-1][:120]!r} is not a valid repository id",
            expected="owner/name or name: up to 96 letters, digits, and . _ - inside; without -- "
            "and .., and not ending in .git",
            received=flaw,
            fix="choose another id",
            field=field,
        )
