"""Diffusion editors: loading them, sampling from them, and their training objective."""
