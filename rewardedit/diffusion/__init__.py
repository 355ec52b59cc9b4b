"""Diffusion editors: loading and asking them, and their training objective."""
