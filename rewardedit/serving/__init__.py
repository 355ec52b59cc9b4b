"""Scores over HTTP."""
