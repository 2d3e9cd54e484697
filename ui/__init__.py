"""The page: Gradio components over `core`. Nothing in `core` knows of it."""
