"""Stand-in of ComfyUI's `comfy_api`."""
