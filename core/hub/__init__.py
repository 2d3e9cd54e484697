"""Publishes to and downloads from the Hugging Face Hub.

Importing makes no network requests. Tokens are read from `HF_TOKEN` or the Hub's own login and
never stored.
"""
