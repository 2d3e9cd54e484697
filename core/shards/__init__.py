"""Builds, stores and reads shards of token sequences.

    layout.py   cuts tokens into sequences, by objective
    records.py  the TFRecord format, in two layouts
    encode.py   documents to token ids, on all cores
    build.py    the stage that turns a corpus into shards
    read.py     opens shards and reads sequences by index
    storage.py  shards at an address such as gs://bucket/folder

This package doesn't know Keras or a backend.
"""
