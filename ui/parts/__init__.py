"""Parts of the page that several tabs share."""
