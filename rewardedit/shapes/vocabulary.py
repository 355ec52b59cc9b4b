"""The words and the palette of the shapes world, for scenes and instructions."""

from rewardedit.instructions import parsed

# Recorded in every result. It changes whenever a sample of the world or a rating of the oracle may change;
# results of two versions are never compared.
WORLD_VERSION = 2
SIZE = 64  # pixels a side
EDIT_TYPES = ("add", "remove", "replace", "recolour", "resize", "move", "background")
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross")
SIZES = ("small", "medium", "large")
RADII = (5.5, 7.25, 9.25)  # pixels, one for each of SIZES
INSIDE_RADIUS = 4.5  # radius in pixels of an object that lies inside another
HOSTS = ("circle", "square", "diamond")  # shapes that, when large, have room for another object inside
# Largest offset of an object's centre from its cell's, so that it stays inside if it grows by one size.
JITTER = (3.0, 1.25, 1.0)
PLACES = (
    "top left",
    "top center",
    "top right",
    "center left",
    "center",
    "center right",
    "bottom left",
    "bottom center",
    "bottom right",
)
# Instructions of the world say "inside" or "up" and never "on", which may be either.
RELATIONS = tuple(name for name in parsed.RELATIONS if name != "on")
INSIDE = RELATIONS.index("inside")
DIRECTIONS = 4  # the first relations, which an object can also have to its own old place
CELL = SIZE / 3  # a scene is a 3 × 3 grid of cells that hold one object each
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (245, 220, 50),
    "orange": (245, 130, 25),
    "purple": (130, 30, 165),
    "white": (250, 250, 250),
    "black": (20, 20, 20),
}
BACKGROUNDS = {
    "gray": (128, 128, 128),
    "beige": (225, 205, 165),
    "pink": (245, 165, 190),
    "mint": (160, 220, 185),
    "lavender": (180, 165, 230),
    "brown": (115, 80, 55),
}
TEXTURES = ("striped", "checkered", "dotted")
BACKDROPS = ("plain", "textured", "photo")
