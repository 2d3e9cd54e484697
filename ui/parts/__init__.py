"""What the page and its tabs are put together from."""
