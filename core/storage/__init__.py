"""Files at storage addresses."""
