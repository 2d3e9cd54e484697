"""Parts that several tabs share."""
