"""Gradio's app inside our middleware and without its downloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import gradio as gr
from gradio import blocks, processing_utils, route_utils, routes, static_server
from starlette.middleware import Middleware

_REFUSAL = "The studio doesn't fetch addresses for a browser."
# Gradio's functions that fetch addresses named by requests, in any module.
DOWNLOADS = (
    "async_ssrf_protected_get",
    "async_ssrf_protected_download",
    "ssrf_protected_download",
    "save_url_to_cache",
    "unsafe_download",
    "secure_url_stream_response",
)


class GuardedApp(routes.App):
    """Gradio's app with middleware outside of Gradio's own.

    Gradio's CORS middleware, which answers other websites, precedes any passed to it.

    Args:
        outer: Around the whole app, outermost first.
        inner: Behind Gradio's, where sign-in sessions are known.
    """

    def __init__(self, outer: Sequence[Middleware], inner: Sequence[Middleware]) -> None:
        self._outer = outer
        super().__init__(
            default_response_class=routes.ORJSONResponse,
            middleware=list(inner),
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
        )

    def build_middleware_stack(self) -> Any:
        """Builds the ASGI app."""
        app: Any = super().build_middleware_stack()
        for cls, args, options in reversed(self._outer):
            app = cls(app, *args, **options)
        return app

    def build_proxy_request(self, url_path: str) -> NoReturn:
        """Refuses `/proxy=`."""
        raise PermissionError(_REFUSAL)


def disable_downloads() -> None:
    """Disables Gradio's downloads, in case the middleware misses a request."""
    for module in (processing_utils, route_utils, routes, static_server, blocks):
        for name in DOWNLOADS:
            if hasattr(module, name):
                is_async = name.startswith(("async_", "secure_"))
                setattr(module, name, _refuse_async if is_async else _refuse)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise gr.Error(_REFUSAL, print_exception=False)


async def _refuse_async(*_: Any, **__: Any) -> NoReturn:
    raise gr.Error(_REFUSAL, print_exception=False)
