"""Tokens that a small tokenizer lacks: each text survives the way to tokens and back, also from a file."""

import pytest
import torch
from transformers import AutoTokenizer

from rewardedit.language.vlm import load_vlm
from rewardedit.language.vocabulary import extend_vocabulary
from rewardedit.regions.differences import Difference
from rewardedit.scorers.dice_text import format_differences, parse_differences

FOUND = (
    Difference("ADD", "red circle", (0.12, 0.34, 1.0, 0.78)),
    Difference("EDIT", "blue-green star", (0, 0, 0.5, 1)),
)


def test_answers_survive_tokens_and_files(tmp_path):
    vlm = load_vlm("shapes/vlm")
    tokenizer = vlm.processor.tokenizer
    answer = format_differences(FOUND, 2)
    before = tokenizer("remove the red circle", add_special_tokens=False).input_ids
    extend_vocabulary(vlm.model, tokenizer, [answer, "Decision: YES"], decimals=2)

    ids = tokenizer(answer, add_special_tokens=False).input_ids
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.unk_token_id not in ids
    assert parse_differences(tokenizer.decode(ids)).differences == tuple(
        Difference(one.command, one.subject.replace("-", " -"), one.box) for one in FOUND
    )
    assert tokenizer("remove the red circle", add_special_tokens=False).input_ids == before
    unknown = tokenizer("é", add_special_tokens=False).input_ids
    assert tokenizer.unk_token_id in unknown
    assert tokenizer.eos_token_id not in unknown
    assert tokenizer.unk_token_id != tokenizer.eos_token_id

    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(answer + "é", add_special_tokens=False).input_ids == [*ids, *unknown]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_of_numbers_change_smoothly(dtype):
    torch.manual_seed(0)
    vlm = load_vlm("shapes/vlm", dtype=dtype)
    tokenizer = vlm.processor.tokenizer
    old = vlm.model.get_input_embeddings().weight[:537].clone()
    extend_vocabulary(vlm.model, tokenizer, ["decision"], decimals=2)
    weights = vlm.model.get_input_embeddings().weight
    assert torch.equal(weights[:537], old)
    near, middle, far = (weights[tokenizer.convert_tokens_to_ids(text)] for text in ("0.50", "0.51", "0.90"))
    assert (near - middle).norm() < 0.5 * (near - far).norm()


def test_a_tokenizer_that_lacks_nothing_keeps_its_own_tokens():
    vlm = load_vlm("shapes/vlm")
    tokenizer = vlm.processor.tokenizer
    extend_vocabulary(vlm.model, tokenizer, ["decision"])
    count = len(tokenizer)
    extend_vocabulary(vlm.model, tokenizer, ["decision"])
    assert len(tokenizer) == count
