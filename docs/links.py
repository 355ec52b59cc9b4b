"""Prepares pages for the built documentation: links to files outside of docs/, and blocks that need a GPU."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Points links that leave docs/ to the repository, or names the file if its address is not configured."""

    def place(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return f"{text} (`{path}`)"

    return OUTSIDE.sub(place, markdown).replace("```python gpu\n", '```python title="on a GPU"\n')
