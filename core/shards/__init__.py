"""Builds, stores and reads shards of token sequences, without Keras or a backend."""
