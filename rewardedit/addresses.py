"""Where endpoints are, and which environment variable holds their key: settings that are written to files,
and must hold no key.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

SCHEMES = ("http://", "https://")


def require_address(url: str) -> None:
    """Raises ValueError, which does not quote it, where an address is none of HTTP, or holds a user or a
    query, in which keys are sent.
    """
    parts = urlsplit(url)
    if not url.startswith(SCHEMES) or "@" in parts.netloc or parts.query:
        raise ValueError(
            "endpoint: expected an address such as http://localhost:8000/v1, without a user or a query; "
            "a key belongs in an environment variable"
        )


def require_variable(name: str) -> None:
    """Raises ValueError, which does not quote it, where a text cannot be the name of an environment variable:
    it may be the key itself.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(
            "key_variable: expected the name of an environment variable, such as OPENAI_API_KEY; "
            "got something else, perhaps the key itself"
        )


def require_no_key(options: Any) -> None:
    """`require_address` of every address in options, `require_variable` of every variable's name."""
    if isinstance(options, str):
        if options.startswith(SCHEMES):
            require_address(options.partition("#")[0])
    elif isinstance(options, Mapping):
        if isinstance(options.get("key_variable"), str):
            require_variable(options["key_variable"])
        require_no_key(list(options.values()))
    elif isinstance(options, Iterable):
        for value in options:
            require_no_key(value)
