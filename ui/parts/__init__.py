"""What several tabs are put together from."""
