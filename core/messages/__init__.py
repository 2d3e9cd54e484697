"""Prepares messages to people: suggestions, and texts without secrets or control characters."""
