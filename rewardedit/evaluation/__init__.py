"""Agreement of scores with people, and tests whether a difference is more than chance."""
