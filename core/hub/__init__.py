"""The client of the Hub: login, ids and downloads."""
