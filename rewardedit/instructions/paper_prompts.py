"""BPM's prompts for a parser as the paper prints them (Fig. 6), and the reading of their answers."""

import re

from rewardedit.language.answers import normalised

OBJECTS = (
    "Given an instruction for image editing, output the parts of the original image that should be modified "
    "and the modified parts in the edited image compared to the original image. If there are no parts that "
    "should be modified, output None. Don't output the reasons. Here are some examples: 1. Instruction: "
    '"Replace the bike with bear." Output: Original image: bike. Edited image: bear. 2. Instruction: "Add a '
    'bear." Output: Original image: None. Edited image: bear. 3. Instruction: "Remove the bike." Output: '
    'Original image: bike. Edited image: None. Here is the instruction: "{instruction}"'
)
SIZE = (
    "Given an instruction for image editing, output what size changes of the objects are involved, such as "
    '"larger", "smaller", "unchanged". Don\'t output the reasons. Here are some examples: 1. Instruction: '
    '"give the bear bigger claws." Output: larger. 2. Instruction: "Make the hydrant blue." Output: '
    'unchanged. 3. Instruction: "Make the vase smaller." Output: smaller. Here is the instruction: '
    '"{instruction}"'
)
POSITION = (
    "Given an instruction for image editing and edited area in the original and edited image, output the "
    "positional relationship between the edited area in the edited image and the edited area in the original "
    'image. The optional positional relationships are: "left", "right", "up", "down", "inside", "unchanged", '
    '"near". Here are some examples: 1. Instruction: "put a car on the screen of the laptop". Edited area in '
    "original image: screen of the laptop. Edited area in edited image: car. Output: inside. 2. Instruction: "
    '"put a bird on top of the tower". Edited area in original image: tower. Edited area in edited image: '
    'bird. Output: up. 3. Instruction: "replace the cat with a dog". Edited area in original image: cat. '
    "Edited area in edited image: dog. Output: unchanged. Here is the instruction: "
    '"{instruction}". Edited area in original image: {source}. Edited area in edited image: {target}.'
)


def as_lines(answer: str) -> str:
    """An answer to `OBJECTS` in the form of our own prompts: "before: bike / after: bear"."""
    answer = normalised(answer)
    match = re.search(r"original image:\s*(.+?)[.\s]*edited image:\s*([^.\n]+)", answer, re.I | re.S)
    return answer if match is None else f"before: {match[1].strip()}\nafter: {match[2].strip()}"


def as_relation(answer: str) -> str:
    """An answer to `POSITION` in the form of our own prompts; it is relative to the original area."""
    word = normalised(answer).strip().strip("\"'.").removeprefix("Output:").strip(" \"'.")
    return f"relation: {word.lower()}"
