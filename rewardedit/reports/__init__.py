"""Pages, pictures and cards of results."""
