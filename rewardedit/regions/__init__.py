"""Regions of an edit: objects found by their names, and the places that changed."""
