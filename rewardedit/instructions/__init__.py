"""What an edit instruction asks, in a form that programs can check."""

from rewardedit.instructions.parsed import ParsedEdit

__all__ = ["ParsedEdit"]
