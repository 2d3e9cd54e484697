"""Rows of token ids on the disk.

    layout.py   how rows are laid out for what they are used for
    records.py  the TFRecord format, in two layouts
    encode.py   documents to token ids, on all cores
    build.py    the stage: a corpus becomes shards
    read.py     shards are opened, their rows read by number
    storage.py  shards at an address like gs://bucket/folder

Nothing here knows of Keras or of an engine.
"""
