"""Questions to the ADIEE scorer, and the answer from which its score is read (ADIEE Sec. 3.3, App. B).

The model answers with a special token, [SCORE]; its last hidden state there is decoded into the score. Both
in training and at inference the answer is given, not generated: one forward pass.
"""

import re
from typing import Any, Literal

TOKEN = "[SCORE]"
ANSWER = f"It is {TOKEN}."
Layout = Literal["pair", "concat"]
Prompts = Literal["ours", "paper"]
# Four phrasings, as in ADIEE; the words are ours.
QUESTIONS = (
    '{after} is an edit of {before} by the instruction "{instruction}". How well was that done?',
    'The instruction was "{instruction}". Rate the edit that made {after} out of {before}.',
    'How good is {after} as what "{instruction}" makes of {before}?',
    'Somebody was told "{instruction}" about {before} and gave back {after}. What does that deserve?',
)
# As ADIEE prints them (App. B), about two images or the halves of one.
ASKED = 'how successful the edit instruction "{instruction}" has been executed from {before} to {after}'
PAPER_QUESTIONS = (
    f"Can you rate {ASKED} with a score from 0 to 10?",
    f"Please rate {ASKED} with a score from 0 to 10.",
    f"{ASKED}? Please respond with a score from 0 to 10.",
    f"{ASKED}? Please output a score from 0 to 10.",
)
PLACES: dict[Layout, tuple[str, str]] = {
    "pair": ("the first image", "the second image"),
    "concat": ("the left half", "the right half"),
}
IMAGES: dict[Layout, int] = {"pair": 2, "concat": 1}


def question(number: int, instruction: str, layout: Layout, prompts: Prompts = "ours") -> str:
    """A question about an edit, in our words or in the paper's."""
    before, after = PLACES[layout]
    choices = QUESTIONS if prompts == "ours" else PAPER_QUESTIONS
    text = choices[number].format(before=before, after=after, instruction=instruction)
    return text[0].upper() + text[1:]


def turns(number: int, instruction: str, layout: Layout, prompts: Prompts = "ours") -> list[dict[str, Any]]:
    """The question as a chat: images first, the source before the edit, so that everything before the edit
    depends on the source only.
    """
    content = [{"type": "image"}] * IMAGES[layout]
    content.append({"type": "text", "text": question(number, instruction, layout, prompts)})
    return [{"role": "user", "content": content}]


def require_token(tokenizer: Any) -> int:
    """The id of [SCORE].

    Raises:
        ValueError: if the tokenizer does not keep it as a single token.
    """
    number = tokenizer.convert_tokens_to_ids(TOKEN)
    ids = tokenizer(ANSWER, add_special_tokens=False).input_ids
    if number is None or number == tokenizer.unk_token_id or ids.count(number) != 1:
        pieces = tokenizer.convert_ids_to_tokens(ids)
        raise ValueError(
            f"the tokenizer splits {TOKEN}: {ANSWER!r} becomes {pieces}; add it as a special token "
            "before the model's embeddings are resized"
        )
    return number


def add_token(model: Any, processor: Any, like: str | None = None) -> int:
    """Adds [SCORE] to a model's vocabulary if it is missing, and returns its id.

    Call it before PEFT wraps the model, or its new rows would not be trained and saved.

    Args:
        like: text whose last token's input embedding initialises a new token; None: the mean of all tokens.
    """
    tokenizer = processor.tokenizer
    new = tokenizer.convert_tokens_to_ids(TOKEN) in (None, tokenizer.unk_token_id)
    if new:
        tokenizer.add_tokens([TOKEN], special_tokens=True)
    number = require_token(tokenizer)
    _make_room(model, tokenizer)
    if new:
        embeddings = model.get_input_embeddings().weight.data
        if like is not None:
            embeddings[number] = embeddings[tokenizer(like, add_special_tokens=False).input_ids[-1]]
        else:  # a model may already have an untrained row for it
            embeddings[number] = embeddings[:number].mean(0)
    return number


def add_words(model: Any, processor: Any, layout: Layout) -> int:
    """Adds each word of the questions and of the answer that the tokenizer splits as one token, and returns
    the number of added words. A tokenizer of few words spends most of a question's tokens on them.

    Call it before PEFT wraps the model. A word's embeddings start as the mean of those of its parts. The same
    words in an instruction become these tokens too.

    Raises:
        ValueError: if questions become longer, as with tokenizers that keep the space before a word.
    """
    from tokenizers import AddedToken

    tokenizer = processor.tokenizer

    def tokens(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    texts = [question(number, "", layout) for number in range(len(QUESTIONS))]
    words = re.findall(r"[a-z]+", " ".join([*texts, ANSWER.replace(TOKEN, "")]).lower())

    parts = {}
    for word in sorted(set(words)):
        ids = tokens(word)
        if len(ids) > 1:
            parts[word] = ids

    lengths = [len(tokens(text)) for text in texts]
    # Whole words only: "is" stays a part of "this".
    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=True) for word in parts])
    for text, length in zip(texts, lengths, strict=True):
        if len(tokens(text)) > length:
            raise ValueError(
                "add_question_tokens: this tokenizer already encodes the questions in fewer tokens; leave "
                "it out"
            )

    _make_room(model, tokenizer)
    for embeddings in (model.get_input_embeddings().weight.data, model.get_output_embeddings().weight.data):
        for word, ids in parts.items():
            embeddings[tokenizer.convert_tokens_to_ids(word)] = embeddings[ids].mean(0)
    return len(parts)


def _make_room(model: Any, tokenizer: Any) -> None:
    """Resizes the embeddings to all tokens, unless the model already has enough."""
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
