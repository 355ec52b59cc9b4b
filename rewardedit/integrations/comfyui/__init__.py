"""Nodes for ComfyUI."""
