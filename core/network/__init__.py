"""Connections to other machines, each checked before it is made."""
