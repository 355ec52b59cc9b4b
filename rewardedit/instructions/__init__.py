"""Parsed edit instructions, in a form that programs can check."""

from rewardedit.instructions.joined import join_instructions
from rewardedit.instructions.parsed import ParsedEdit

__all__ = ["ParsedEdit", "join_instructions"]
