"""Gradio's sign-in by name and password."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import HTTPException

from core.network.logins import Logins, TooManyWrongPasswordsError
from ui.parts.access import client_address


class Passwords:
    """Names and passwords for Gradio.

    Pass `fits` to it: it takes the coroutine of an async `__call__` for True.
    """

    def __init__(self, logins: Iterable[tuple[str, str]]) -> None:
        self._logins = Logins(logins)

    async def fits(self, name: str, password: str) -> bool:
        """Returns whether name and password match; a mismatch takes a second.

        Raises:
            HTTPException: 429, unchecked, after too many wrong passwords.
        """
        try:
            return await self._logins.fits(name, password, client_address.get())
        except TooManyWrongPasswordsError as error:
            headers = {"Retry-After": str(error.seconds)}
            raise HTTPException(429, str(error), headers=headers) from error
