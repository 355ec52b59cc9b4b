"""Does a score agree with people, and is a difference more than chance."""
