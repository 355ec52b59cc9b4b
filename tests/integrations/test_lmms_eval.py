"""The functions of an lmms-eval task, called as its evaluator does."""

import json
import math

import pytest

from rewardedit.images import to_pil
from rewardedit.integrations.lmms_eval import EditTask
from tests.integrations.test_edit_reward import images


def test_an_answer_s_image_is_scored_and_failures_are_counted(tmp_path):
    source, edited = map(to_pil, images((8, 8), (8, 8)))
    edited.save(tmp_path / "edited.png")
    doc = {"input_image": source, "instruction": "make it warmer"}
    task = EditTask("l1", device="cpu")
    assert task.doc_to_visual(doc) == [source]
    assert task.doc_to_text(doc) == "make it warmer"
    answers = [
        json.dumps({"text": "", "images": [str(tmp_path / "edited.png")]}),
        json.dumps({"text": "no", "images": []}),
        json.dumps({"text": "", "images": [str(tmp_path / "nothing.png")]}),
        "an apology",
    ]
    found = [task.process_results(doc, [answer]) for answer in answers]
    scores = [one["edit_score"]["score"] for one in found]
    assert [math.isnan(score) for score in scores] == [False, True, True, True]
    reasons = [one["edit_invalid"]["reason"] for one in found]
    assert reasons[0] is None
    assert all(reason.startswith("no edited image: ") for reason in reasons[1:])
    assert task.mean_score([one["edit_score"] for one in found]) == scores[0]
    assert task.invalid_share([one["edit_invalid"] for one in found]) == 0.75
    assert math.isnan(task.mean_score([found[1]["edit_score"]]))


def test_a_document_without_a_source_is_refused():
    doc = {"input_image_raw": None, "instruction": "make it warmer"}
    task = EditTask("l1", source="input_image_raw", device="cpu")
    for call in (task.doc_to_visual, lambda doc: task.process_results(doc, ["{}"])):
        with pytest.raises(ValueError, match="input_image_raw: expected the source image; got none"):
            call(doc)
