"""The pipeline's stages and the quickstart."""
