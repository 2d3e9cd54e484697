"""The command line: one module per command group, and in `handlers` one that runs it."""
