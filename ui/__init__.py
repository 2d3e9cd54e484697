"""Gradio web app over `core`, which does not import it."""

from ui.parts.gradio_stubs import write_no_stubs

write_no_stubs()
