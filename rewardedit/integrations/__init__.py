"""Rewards for other projects' training loops, metrics and graphs: one file each."""
