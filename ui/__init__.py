"""Gradio web app over `core`, which does not import it."""
