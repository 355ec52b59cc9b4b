"""The small trained models of the offline world, by name; each comes from the recipe of the same name."""

from pathlib import Path

NAMES = {"shapes-clip": "clip", "shapes-editor": "editor", "shapes-vifi-clip": "vifi_clip"}


def resolve(name: str) -> str:
    """The folder of a packaged model; any other name (a path, a hub name) as it is."""
    return str(Path(__file__).parent / NAMES[name]) if name in NAMES else name
