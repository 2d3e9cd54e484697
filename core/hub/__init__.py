"""Publishes to and downloads from the Hub."""
