"""The stages of the pipeline: their registry, and the quickstart that runs them all."""
