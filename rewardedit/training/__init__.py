"""Building blocks of the trainers."""
