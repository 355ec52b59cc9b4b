"""Trainers of the small models of the offline world."""
