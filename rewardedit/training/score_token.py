"""Losses of a vision-language model that answers with a token whose state is a score (ADIEE Sec. 3.3)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.scorers.adiee import Adiee
from rewardedit.scorers.adiee_head import GRADES
from rewardedit.scorers.adiee_text import ANSWER, TOKEN
from rewardedit.training.shared_images import encode_images_once


def losses(
    scorer: Adiee,
    batch: EditBatch,
    labels: Float[Tensor, "b axes"],
    questions: list[int],
    compat: str = "soft",
    per_edit: int = 1,
    positive_weight: float = 1.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy of the answers' tokens, and error of the score read at [SCORE].

    Args:
        per_edit: number of consecutive rows that show the same edit.
        positive_weight: weight of the errors of scores whose labels are at least 5.
    """
    texts = []
    for instruction, question in zip(batch.instruction, questions, strict=True):
        fitting = scorer.fitting(instruction, question, batch)
        texts.append(scorer.prompt(fitting, question) + ANSWER)
    if per_edit > 1:
        hidden, ids = encode_images_once(scorer, texts, batch.source[::per_edit], batch.edited[::per_edit])
    else:
        inputs = scorer.inputs(texts, batch.source, batch.edited)
        ids = inputs["input_ids"]
        hidden = scorer.model.model(**inputs, use_cache=False).last_hidden_state
    raw = scorer.head(scorer.at_token(hidden, ids))
    known = labels.isfinite()
    # Every label has the same weight, however a batch is divided.
    score = score_loss(raw[known], labels[known], compat, positive_weight) * known.float().mean()
    return answer_loss(scorer, hidden, ids), score


def answer_loss(scorer: Adiee, hidden: Float[Tensor, "b n d"], input_ids: Tensor) -> Float[Tensor, ""]:
    """Cross-entropy of the tokens of "It is [SCORE].", each predicted from the state before it."""
    tokenizer = scorer.vlm.processor.tokenizer
    before = len(tokenizer(ANSWER[: ANSWER.index(TOKEN)], add_special_tokens=False).input_ids)
    after = len(tokenizer(ANSWER, add_special_tokens=False).input_ids) - before - 1
    place = (input_ids == scorer.token).int().argmax(1, keepdim=True)
    wanted = place + torch.arange(-before, after + 1, device=place.device)
    row = torch.arange(len(place), device=place.device)[:, None]
    logits = scorer.model.get_output_embeddings()(hidden[row, wanted - 1])
    return F.cross_entropy(logits.flatten(0, 1).float(), input_ids[row, wanted].flatten())


def score_loss(
    raw: Float[Tensor, "b classes"],
    labels: Float[Tensor, " b"],
    compat: str = "soft",
    positive_weight: float = 1.0,
) -> Float[Tensor, ""]:
    """L1 for a scalar head; for a class head, cross-entropy with the label shared by its two neighbours among
    0, 5 and 10 (`compat="code"`: all to the lower one). Errors of labels from 5 on weigh `positive_weight`.
    """
    weight = 1 + (positive_weight - 1) * (labels >= GRADES[1])
    if raw.shape[1] == 1:
        return ((raw[:, 0] - labels).abs() * weight).mean()
    place = labels / (GRADES[1] - GRADES[0])
    low = place.long().clamp(max=len(GRADES) - 1)
    up = (place - low) * (compat == "soft")
    target = F.one_hot(low, len(GRADES)) * (1 - up)[:, None]
    target = target + F.one_hot((low + 1).clamp(max=len(GRADES) - 1), len(GRADES)) * up[:, None]
    return (F.cross_entropy(raw, target, reduction="none") * weight).mean()
