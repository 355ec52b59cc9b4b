"""Planted folders, rows, answers and recipes: nothing of them runs, leaves its folder or is sent."""
