"""Publishes to and downloads from the Hugging Face Hub; never stores tokens."""
