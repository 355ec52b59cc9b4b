"""Several instructions as one."""

from collections.abc import Sequence

JOINT = ", then "


def join_instructions(instructions: Sequence[str]) -> str:
    """Joins instructions in order: "add a red circle, then remove the blue star". A single one is unchanged.

    Raises:
        ValueError: on no instruction, or an empty one.
    """
    if not instructions or not all((text or "").strip() for text in instructions):
        raise ValueError(f"expected instructions with words; got {list(instructions)}")
    if len(instructions) == 1:
        return instructions[0]
    # A full stop would end the sentence before the next "then".
    return JOINT.join(text.strip().rstrip(".!") for text in instructions)
