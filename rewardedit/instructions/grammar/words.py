"""Words that the rules of `grammar` look for."""

PRONOUNS = frozenset(
    ("it", "them", "this", "that", "these", "those", "one", "something else", "they", "him", "her", "?")
)
COLOURS = frozenset(
    (
        *(
            "red",
            "green",
            "blue",
            "yellow",
            "orange",
            "purple",
            "pink",
            "brown",
            "black",
            "white",
            "gray",
            "grey",
        ),
        *(
            "silver",
            "golden",
            "gold",
            "beige",
            "mint",
            "teal",
            "turquoise",
            "cyan",
            "magenta",
            "maroon",
            "navy",
            "violet",
        ),
        *(
            "olive",
            "tan",
            "ivory",
            "cream",
            "crimson",
            "scarlet",
            "indigo",
            "lavender",
            "khaki",
            "blond",
            "blonde",
        ),
    )
)
# Words before a noun that are no nouns.
DETERMINERS = frozenset(("the", "a", "an", "my", "your", "his", "her", "its", "their", "our", "this", "that"))
SHADES = frozenset(  # words that may stand before a colour
    (
        *("dark", "darker", "light", "lighter", "bright", "brighter", "pale", "deep", "warm", "cool", "soft"),
        *("neon", "metallic", "pastel", "mustard", "hot", "baby", "sky", "forest", "lime", "royal", "olive"),
    )
)
CAMERA = frozenset(("zoom", "focus", "crop", "rotate", "flip", "pan", "tilt"))  # operations on a picture
# Objects that "clear" removes; other objects are cleared of something.
LITTER = (
    "fog|mist|clouds?|people|crowd|leaves|snow|dirt|dust|graffiti|trash|rubbish|garbage|litter|debris|"
    "clutter|crumbs|stains?|weeds?|smoke|mud"
)
LARGER = (
    r"(?:bigger|larger|big|large|huge|giant|taller|tall|longer|wider|higher|gigantic|enormous|massive|"
    r"twice (?:as (?:big|large|tall)|the size)|double (?:its|the|their) size)"
)
SMALLER = (
    r"(?:smaller|small|tiny|shorter|little|narrower|thinner|mini|"
    r"half (?:as (?:big|large|tall)|(?:the|its|their) size))"
)
LARGER_VERBS = "enlarge|magnify|widen|blow up|expand|lengthen|grow"
SMALLER_VERBS = "shrink|minify|shorten|narrow|downsize"
# Words after "make it" that concern the whole image.
GLOBAL_CHANGES = (
    "night|day|daytime|nighttime|winter|summer|autumn|fall|spring|snow|snowing|snowy|rain|raining|rainy|"
    "foggy|fog|"
    "sunny|cloudy|stormy|dusk|dawn|sunset|sunrise|evening|morning|darker|brighter|misty"
)
STYLES = (
    "painting|watercolou?r|sketch|drawing|cartoon|mosaic|photograph|pixel art|lego|comic|anime|sepia|"
    "black and white|oil|style|scene|sculpture|render"
)
WHOLE = r"(?:whole |entire )?(?:photo|photograph|image|picture|scene|season)"
# Qualities other than colours and sizes, of things and of living beings.
STATES = (
    r"(?:blurry|blurred|rusty|open|closed|lit|off|on|moldy|wooden|marble|gold|golden|wet|dry|empty|full|"
    r"half full|young|old|angry|happy|sad|curly|straight|frozen|wilted|striped|burnt|broken|peeled|flat|"
    r"leaning|sitting|standing|sleeping|fatter|thinner|glass|wood|made of \w+|dirty|clean|shiny|"
    r"transparent|melted|upside down|"
    r"\w+ looking|older|younger|bald|sparkly|spotted|furry|metallic|stone|plastic|snowy|cloudy|dark|"
    r"bright|darker|brighter|free|asleep|blooming|torn|folded|cracked|smiling)"
)
# Words of a relation, longest first, and their meaning.
RELATIONS = (
    (r"(?:to the )?left of", "left"),
    (r"(?:on|to|at) the left (?:side )?of", "left"),
    (r"(?:to the )?right of", "right"),
    (r"(?:on|to|at) the right (?:side )?of", "right"),
    (r"(?:on top of|right above|directly above|above|over|atop|onto the top of)", "up"),
    (r"(?:below|beneath|under|underneath)", "down"),
    (
        r"(?:next to|near to|near|beside|close to|closer to|by|around|between|along|alongside|"
        r"in front of|behind|at the edge of|on the other side of)",
        "near",
    ),
    (
        r"(?:inside of|inside|into|within|in the (?:middle|center|centre) of|at the (?:top|bottom) of)",
        "inside",
    ),
    (r"at", "near"),
    (r"(?:onto|on)", "on"),
    (r"(?:in|to|from)", "inside"),
)
# Places in the image.
_OF = r"(?: (?:corner|edge|side))?(?: of the (?:image|picture|photo|frame))?"
_TO = r"(?:(?:at|in|to|into|on) )?(?:the )?"
_CORNERS = (
    "top left",
    "top right",
    "top center",
    "bottom left",
    "bottom right",
    "bottom center",
    "center left",
    "center right",
)
PLACES = (
    *((rf"{_TO}{place.replace(' ', '[ -]')}{_OF}", place) for place in _CORNERS),
    # A single word needs "at the" or similar words before it.
    *((rf"(?:at|in|to|into) (?:the )?{place}{_OF}", place) for place in ("top", "bottom", "center")),
    (r"(?:at|in|to|into) (?:the )?(?:middle|centre)" + _OF, "center"),
)
# Names that are not objects to be found: the image, a part of its depth, and a side of it, which is a place.
IMAGE = r"(?:whole |entire )?(?:image|picture|photo|photograph|frame|scene|background|foreground)"
SIDE = rf"(?P<side>left|right|top|bottom)(?:[ -]hand)?(?: (?:side|edge|part|half))?(?: of (?:the )?{IMAGE})?"
SIDES = {"left": "center left", "right": "center right", "top": "top", "bottom": "bottom"}
# Directions without a reference.
TOWARDS = (
    (r"(?:to the |towards the |a little |a bit )*left(?:wards?)?(?: side)?", "left"),
    (r"(?:to the |towards the |a little |a bit )*right(?:wards?)?(?: side)?", "right"),
    (r"(?:higher|up|upwards?)(?: higher)?", "up"),
    (r"(?:lower|down|downwards?)", "down"),
)
# Parts of the rules' patterns.
SHOULD = r"(?:should|could|must|ought to|needs? to|has to|have to|would)"
BE = r"(?:be|become|turn|turn into|get|look|look like|change to|change into)"
INTO = r"(?:into|to|in to)"
# Verbs at the end of a new object, which are not part of its name.
ACTIONS = (
    r" (?:visible|sit|sits|sitting|run|runs|running|stand|stands|standing|flying|fly|swimming|peek out|"
    r"lying|lie)$"
)
# Actions that may be asked of an object.
VERBS = (
    r"(?:smile|close|look to|look at|jump|sleep|sit|stand|run|yawn|laugh|dance|wave|fly|sing|cry|walk|swim|"
    r"say)\b"
)
WRITTEN = frozenset(("text", "sign", "label", "title", "caption", "writing", "words", "letters"))
MATERIALS = frozenset(
    (
        "marble",
        "wood",
        "gold",
        "silver",
        "stone",
        "glass",
        "ice",
        "metal",
        "brick",
        "leather",
        "plastic",
        "paper",
    )
)
