"""Runs on other machines: where they execute, and the mirror through which they report.

A *target* is a kind of machine (`ssh://`, `hf://`, `tpu://`, `sky://`). A *mirror* is a folder at a
storage address. The machine writes events, checkpoints and its exit status there; a *follower* on
this machine reads them into the run's folder. Neither needs the other to be reachable.
"""
