"""Where endpoints are, and which environment variable holds their key: settings that are written to files,
and must hold no key.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

ADDRESS = re.compile(r"https?://", re.IGNORECASE)
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def require_address(url: str) -> None:
    """Raises ValueError, which does not quote it, where an address is none of HTTP, or holds a user, a query
    or parameters, in which keys are sent.
    """
    try:
        parts = urlsplit(url)
        plain = bool(ADDRESS.match(url)) and "@" not in parts.netloc and not re.search("[?;]", url)
    except ValueError:  # which quotes it
        plain = False
    if not plain:
        raise ValueError(
            "endpoint: expected an address such as http://localhost:8000/v1, without a user or a query; "
            "a key belongs in an environment variable"
        )


def require_variable(name: str) -> None:
    """Raises ValueError, which does not quote it, where a text is not in the form of an environment
    variable's name: it may be the key itself.
    """
    if not VARIABLE.fullmatch(name):
        raise ValueError(
            "key_variable: expected the name of an environment variable in capitals, such as OPENAI_API_KEY; "
            "got something else, perhaps the key itself"
        )


def require_no_key(options: Any) -> None:
    """`require_address` of every address in options, `require_variable` of every variable's name."""
    if isinstance(options, str):
        if ADDRESS.match(options):
            require_address(options)
    elif isinstance(options, Mapping):
        if isinstance(options.get("key_variable"), str):
            require_variable(options["key_variable"])
        require_no_key(list(options.values()))
    elif isinstance(options, list | tuple):
        for value in options:
            require_no_key(value)
