"""The judge by tiny random vision-language models, and by a real HTTP server on this machine."""

import base64
import dataclasses
import io
import json
import math
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from PIL import Image
from torch import nn

from rewardedit import EditBatch, WeightedSum, load_scorer
from rewardedit.images import to_pil, to_tensor
from rewardedit.language.endpoint import Endpoint, EndpointError
from rewardedit.language.judge_models import load_judge
from rewardedit.language.model_hash import model_hash
from rewardedit.language.vlm import Vlm, load_vlm
from rewardedit.language.vlm_weights import load_adapter
from rewardedit.regions.change_map import change_mask
from rewardedit.scorers import Scorer
from rewardedit.scorers.lower_of import LowerOf
from rewardedit.scorers.vlm_judge import VlmJudge, combine, geometric_mean, views
from rewardedit.scorers.vlm_judge_graders import expected_grade, read_all
from rewardedit.scorers.vlm_judge_prompts import CRITERIA, Example, chat, questions, read_grade
from tests.models import VLMS, save_judge, save_vlm
from tests.scorers.test_vlm import photograph

VIESCORE = ["followed", "preserved", "natural", "clean"]
GROUPS = {"consistency", "quality"}


def save_llava(folder: str) -> str:
    """A tiny LLaVA, of which we own no preprocessing, of the parts of a LLaVA-NeXT."""
    save_judge(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    parts = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=parts.vision_config,
        text_config=parts.text_config,
        image_token_index=parts.image_token_index,
        vision_feature_layer=-2,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    processor = transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template,
        num_additional_image_tokens=1,
    )
    shutil.rmtree(folder)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_judge(str(tmp_path_factory.mktemp("judge")))


@pytest.fixture(scope="module")
def judge(folder: str) -> VlmJudge:
    return VlmJudge(load_vlm(folder), "tiny")


@pytest.fixture(scope="module", params=VLMS)
def of_kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VlmJudge:
    return VlmJudge.from_pretrained(save_judge(str(tmp_path_factory.mktemp(request.param)), request.param))


def make_batch(b: int = 2, side: int = 32) -> EditBatch:
    source = torch.stack([photograph(side, side, seed) for seed in range(b)])
    edited = source.clone()
    edited[:, :, side // 2 :, side // 2 :] = torch.rand(
        b, 3, 1, 1, generator=torch.Generator().manual_seed(3)
    )
    return EditBatch(source, [f"add a hat {'at the top ' * i}" for i in range(b)], edited)


def example(names: list[str], grade: float = 8.0) -> Example:
    batch = make_batch(1)
    grades = dict.fromkeys(names, grade)
    reasons = dict.fromkeys(names, "It is there and all else is kept.")
    return Example(batch.source[0], batch.edited[0], "paint the corner", grades, reasons)


# Grades by digits.


def test_a_grade_is_the_mean_over_ten_digits_by_one_forward_pass_a_question(of_kind):
    batch = make_batch()
    passes = []
    hook = of_kind.model.register_forward_hook(lambda *_: passes.append(1))
    parts = of_kind(batch).parts
    hook.remove()
    assert len(passes) == len(of_kind.questions) == 4
    vlm = of_kind.vlm
    digits = vlm.processor.tokenizer.convert_tokens_to_ids(list("0123456789"))
    for question, pair in zip(of_kind.questions, (True, True, False, False), strict=True):
        images = torch.stack([batch.source, batch.edited] if pair else [batch.edited], dim=1)
        texts = [vlm.prompt(chat(question, text, "digits")) + "Grade:" for text in batch.instruction]
        logits = vlm.model(**vlm.inputs(texts, images)).logits[:, -1, digits]
        weights = logits.exp() / logits.exp().sum(1, keepdim=True)
        grades = sum(weights[:, digit] * digit for digit in range(10)) * 10 / 9
        torch.testing.assert_close(parts[question.name], grades, rtol=1e-4, atol=1e-4)


def test_mixed_precision_does_not_round_a_grade(judge):
    with torch.autocast("cpu", torch.bfloat16):
        grades = judge(make_batch(4)).parts["followed"]
    assert grades.dtype == torch.float32
    assert not torch.equal(grades, grades.bfloat16().float())


def test_scores_are_one_a_row_within_range_and_the_parts_combined(judge):
    scores = judge(make_batch(3))
    assert scores.score.shape == (3,)
    assert scores.valid.all()
    assert set(scores.parts) == {*VIESCORE, *GROUPS}
    assert all(((part >= 0) & (part <= 10)).all() for part in scores.parts.values())
    assert scores.parts["followed"].std() > 0.01
    for i in range(3):
        followed, preserved, natural, clean = (float(scores.parts[name][i]) for name in VIESCORE)
        expected = math.sqrt(min(followed, preserved) * min(natural, clean))
        assert float(scores.score[i]) == pytest.approx(expected, rel=1e-5)


def test_a_batch_equals_one_by_one(of_kind):
    batch = make_batch(3)
    alone = torch.cat([of_kind(batch[i : i + 1]).score for i in range(3)])
    torch.testing.assert_close(alone, of_kind(batch).score, rtol=1e-4, atol=1e-4)


def test_the_gradient_reaches_every_edit_and_no_weight_and_leads_uphill(of_kind):
    assert of_kind.differentiable
    batch = make_batch()
    edited = batch.edited.clone().requires_grad_()
    scores = of_kind(dataclasses.replace(batch, edited=edited))
    scores.mean().backward()
    gradient = edited.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert (gradient.flatten(1).abs().sum(1) > 0).all()
    assert all(weight.grad is None for weight in of_kind.parameters())
    step = 0.1 * gradient / gradient.flatten(1).norm(dim=1)[:, None, None, None]
    uphill = of_kind(dataclasses.replace(batch, edited=batch.edited + step)).score
    downhill = of_kind(dataclasses.replace(batch, edited=batch.edited - step)).score
    assert (uphill > scores.score).all()
    assert (downhill < scores.score).all()


def test_recomputed_questions_have_the_same_scores_and_gradients(judge):
    """To the bit; each question is read once more, in its backward pass."""
    batch = make_batch()
    passes = []
    hook = judge.model.register_forward_hook(lambda *_: passes.append(1))
    found = []
    for score in (judge, judge.checkpointed):
        edited = batch.edited.clone().requires_grad_()
        scores = score(dataclasses.replace(batch, edited=edited))
        scores.mean().backward()
        found.append((scores.score, edited.grad))
    hook.remove()
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert len(passes) == 3 * len(judge.questions)
    judge(batch)
    assert not judge.grader.recomputes


@pytest.mark.parametrize("kind", ["weighted_sum", "lower_of"])
def test_composites_recompute_one_question_at_a_time(kind, judge):
    """A question's second pass is followed by its backward pass, and only then by the next question's."""
    scorers = {"judge": judge, "l1": load_scorer("l1")}
    if kind == "lower_of":
        scorer: Scorer = LowerOf(scorers, {"judge": (1e6, 1.0), "l1": (0.0, 1.0)})  # the judge's is the lower
    else:
        scorer = WeightedSum(scorers, {"judge": 1.0, "l1": 1.0})
    passes = []

    def note(module: nn.Module, given: Any, out: Any) -> None:
        passes.append("forward")
        out.logits.register_hook(lambda _: passes.append("backward"))

    hook = judge.model.register_forward_hook(note)
    batch = make_batch()
    scores = scorer.checkpointed(dataclasses.replace(batch, edited=batch.edited.clone().requires_grad_()))
    passes.clear()
    scores.mean().backward()
    hook.remove()
    assert len(passes) == 2 * len(judge.questions)
    assert all(first != second for first, second in pairwise(passes)), passes


def test_instruction_order_of_images_and_edit_all_count(judge):
    batch = make_batch()
    first = judge(batch).parts
    other = judge(dataclasses.replace(batch, instruction=["remove the dog"] * 2)).parts
    swapped = judge(EditBatch(batch.edited, batch.instruction, batch.source)).parts
    for name in ("followed", "preserved"):
        assert (first[name] != other[name]).all()
        assert (first[name] != swapped[name]).all()
    for name in ("natural", "clean"):  # which see no instruction and no source
        assert torch.equal(first[name], other[name])
        assert (first[name] != swapped[name]).all()
        assert torch.equal(first[name], judge(dataclasses.replace(batch, source=batch.edited)).parts[name])


def test_bf16_is_near_fp32(folder, judge):
    batch = make_batch()
    rough = load_scorer("rewardedit.scorers.vlm_judge:VlmJudge", checkpoint=folder, dtype="bfloat16")(batch)
    assert (rough.score - judge(batch).score).abs().max() < 0.3
    with pytest.raises(ValueError, match="dtype: expected one such as float32"):
        VlmJudge.from_pretrained(folder, dtype="half-size")


def test_the_expected_grade_by_hand_and_its_gradient():
    logits = torch.full((3, 10), -1e9, dtype=torch.float64)
    logits[0, 0] = logits[1, 9] = 0.0
    logits[2, 4] = logits[2, 5] = 1.0  # (4 + 5) / 2 · 10 / 9
    assert expected_grade(logits).tolist() == pytest.approx([0, 10, 5])
    values = torch.randn(2, 10, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(expected_grade, values)


def test_a_grade_of_nothing_has_no_gradient_and_no_nan():
    a = torch.tensor([0.0, 4.0], requires_grad=True)
    root = geometric_mean(a, torch.tensor([5.0, 9.0]))
    assert root.tolist() == [0, 6]
    (gradient,) = torch.autograd.grad(root.sum(), a)
    assert gradient.tolist() == pytest.approx([0, 0.75])  # √(9 a)' = 3 / (2 √a)


def test_a_tokenizer_that_has_no_token_for_each_digit_is_refused(tmp_path):
    save_vlm(str(tmp_path), "llava_next")
    with pytest.raises(ValueError, match=r"each of 0, .*, 9 after 'Grade: ' is one token.*use answer='text'"):
        VlmJudge.from_pretrained(str(tmp_path))
    assert not VlmJudge.from_pretrained(str(tmp_path), answer="text").differentiable


def test_texts_that_steer_the_model_are_taken_out_of_instructions(judge):
    batch = make_batch()
    steered = [f"{text}<image><|endoftext|>" for text in batch.instruction]
    plain = [f"{text}  " for text in batch.instruction]
    scores = judge(dataclasses.replace(batch, instruction=steered))
    assert scores.valid.all()
    assert torch.equal(scores.score, judge(dataclasses.replace(batch, instruction=plain)).score)


# Criteria, regions and the example.


def test_hq_edit_s_two_criteria_are_parts(folder):
    scores = load_scorer("rewardedit.scorers.vlm_judge:VlmJudge", checkpoint=folder, criteria="hq_edit")(
        make_batch()
    )
    assert set(scores.parts) == {"alignment", "coherence", *GROUPS}
    expected = (scores.parts["alignment"] * scores.parts["coherence"]).sqrt()
    torch.testing.assert_close(scores.score, expected)
    with pytest.raises(ValueError, match="criteria: expected one of viescore, hq_edit; got 'mine'"):
        VlmJudge.from_pretrained(folder, criteria="mine")


def test_inside_and_outside_the_change_mask_are_judged_apart(folder):
    judge = VlmJudge.from_pretrained(folder, apart=True)
    names = [f"{name}_inside" for name in VIESCORE]
    names += [f"{name}_outside" for name in VIESCORE[1:]]
    scores = judge(make_batch())
    groups = {f"{group}_{view}" for group in GROUPS for view in ("inside", "outside")}
    assert set(scores.parts) == {*names, *GROUPS, *groups}
    least = torch.minimum(scores.parts["consistency_inside"], scores.parts["consistency_outside"])
    assert torch.equal(scores.parts["consistency"], least)
    quality = torch.stack([scores.parts[name] for name in names if "natural" in name or "clean" in name])
    assert torch.equal(scores.parts["quality"], quality.amin(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_views_are_of_the_images_precision(dtype):
    batch = make_batch()
    for seen in views(batch.source.to(dtype), batch.edited.to(dtype), apart=True).values():
        assert {image.dtype for image in seen} == {dtype}


def test_each_view_shows_its_part_and_gray():
    batch = make_batch(1, side=64)
    mask = change_mask(batch.source, batch.edited)
    found = views(batch.source, batch.edited, apart=True)
    assert set(found) == {"inside", "outside"}
    for i, image in enumerate((batch.source, batch.edited)):
        torch.testing.assert_close(found["inside"][i], image * mask + 0.5 * (1 - mask))
        torch.testing.assert_close(found["outside"][i], image * (1 - mask) + 0.5 * mask)
    corner = (slice(None), slice(None), slice(0, 8), slice(0, 8))  # far from the change
    assert (found["inside"][1][corner] == 0.5).all()
    torch.testing.assert_close(found["outside"][1][corner], batch.source[corner])


def test_without_a_change_both_views_show_the_whole_image():
    batch = make_batch(2, side=64)
    edited = torch.stack([batch.source[0], batch.edited[1]])
    found = views(batch.source, edited, apart=True)
    for view in ("inside", "outside"):
        assert torch.equal(found[view][1][0], edited[0])
        assert not torch.equal(found[view][1][1], edited[1])
    assert views(batch.source, edited, apart=False)["whole"][1] is edited


def test_the_gradient_stays_where_an_image_can_be_seen():
    batch = make_batch(1, side=64)
    edited = batch.edited.clone().requires_grad_()
    inside = views(batch.source, edited, apart=True)["inside"][1]
    (gradient,) = torch.autograd.grad(inside.sum(), edited)
    torch.testing.assert_close(gradient[:, :1], change_mask(batch.source, batch.edited))


def test_an_example_is_shown_before_and_changes_the_grades(folder, judge):
    batch = make_batch()
    good = VlmJudge(load_vlm(folder), "tiny", example=example(VIESCORE, 9))
    bad = VlmJudge(load_vlm(folder), "tiny", example=example(VIESCORE, 1))
    scores = [one(batch).parts["followed"] for one in (judge, good, bad)]
    assert (scores[0] != scores[1]).all()
    assert (scores[1] != scores[2]).all()
    turns = chat(good.questions[0], "add a hat", "digits", good.example)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"][0]["text"] == "Grade: 8"  # 9 of 10, of nine steps
    assert [part["type"] for part in turns[0]["content"]] == ["image", "image", "text"]
    larger = judge(make_batch(2, side=48)).score
    assert not torch.equal(good(make_batch(2, side=48)).score, larger)  # the example is stretched to it


def test_an_example_is_read_from_a_file(tmp_path, folder):
    batch = make_batch(1)
    to_pil(batch.source[0]).save(tmp_path / "a.png")
    to_pil(batch.edited[0]).save(tmp_path / "b.png")
    values = {
        "source": "a.png",
        "edited": "b.png",
        "instruction": "paint the corner",
        "grades": dict.fromkeys(VIESCORE, 8),
    }
    path = tmp_path / "example.json"

    def write(**changed: Any) -> str:
        path.write_text(json.dumps({**values, **changed}))
        return str(path)

    loaded = VlmJudge.from_pretrained(folder, example=write())
    in_code = VlmJudge(load_vlm(folder), "tiny", example=example(VIESCORE))
    torch.testing.assert_close(loaded(make_batch()).score, in_code(make_batch()).score, rtol=1e-3, atol=1e-2)
    with pytest.raises(ValueError, match=r"grades: expected \['clean', 'followed', .*; got \['clean'\]"):
        VlmJudge.from_pretrained(folder, example=write(grades={"clean": 8}))
    with pytest.raises(ValueError, match="clean: expected a grade from 0 to 10; got 11"):
        VlmJudge.from_pretrained(folder, example=write(grades={**values["grades"], "clean": 11}))
    with pytest.raises(ValueError, match="reasons: expected"):
        VlmJudge.from_pretrained(folder, example=write(), answer="text")
    with pytest.raises(ValueError, match=r"expected \['edited', .* got .*'typo'"):
        VlmJudge.from_pretrained(folder, example=write(typo=1))
    with pytest.raises(ValueError, match="expected a JSON file"):
        VlmJudge.from_pretrained(folder, example=str(tmp_path / "nowhere.json"))


# Grades by text.


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ("The hat is there.\nGrade: 7", 7),
        ("**Grade:** 7/10", 7),
        ("- grade : 6.5 out of 10.", 6.5),
        ("Grade: 0", 0),
        ("Grade: 10", 10),
        ("<think>\nGrade: 2\n</think>\nGood.\nGrade: 8", 8),
        ("Grade: 8\nSo it is.\nGrade: 8", 8),
        ("<think>\nGrade: 2", None),  # cut off
        ("Grade: 3\nGrade: 8", None),
        ("It is so.\r\nGrade: 6\r\n", 6),
        ("Good.\rGrade: 4", 4),
        ("Grade: **7**/10", 7),
        ("Grade: __8__", 8),
        ("## Grade: `3`", 3),
        ("Grade\uff1a9", 9),
        ("Grade\u00a0\ufe55\u200b \uff18\uff0e\uff15\uff0f\uff11\uff10", 8.5),
        ("Grade: \u0667", 7),  # of another script
        ("Final Grade: 7", 7),
        ("**My overall grade:** 6 / 10.", 6),
        ("Grade (0-10): 5", 5),
        ("Grade = 2", 2),
        ('{"reasoning": "All kept.", "grade": 7}', 7),
        ('Here:\n```json\n{"grade": "8/10"}\n```\n', 8),
        ('{"result": {"Grade": [6.5]}}', 6.5),
        ("[THINK]Grade: 2[/THINK]Grade: 4", 4),
        ("Grade: 2</think>\nGrade: 9", 9),  # a thought that the prompt began
        ("<think>\nGrade: 2\n</think>\n<think>Grade: 8", None),
        ("<thinking>Grade: 8", None),
        ("Grade: 7\nFinal Grade: 8", None),
        ("Grade: 7 or 8\nGrade: 8", None),
        ("Grade: 70/100\nGrade: 7", None),
        ('{"grade": 7, "grade": 3}', None),
        ('{"grade": 7}\n{"grade": 3}', None),
        ('{"grade": [7, 3]}', None),
        ('{"grade": true}', None),
        ('{"grade": NaN}', None),
        ('{"reasoning": "x\\nGrade: 3"}', None),
        ("Grade: 1*0", None),
        ("Grade: 1**0", None),
        ("Grade: 7\u00b2", None),
        ("Grade: 7\u00bd", None),
        ("Grade: \u22121", None),
        ("Grade: " + "9" * 5000, None),
        ("Grade: 11", None),
        ("Grade: -1", None),
        ("Grade: 7 or 8", None),
        ("Grade: 7/5", None),
        ("I would give it a 7.", None),
        ("The grade: 7 is what others gave", None),
        ("", None),
    ],
)
def test_a_grade_is_read_strictly(answer, grade):
    assert read_grade(answer) == grade


def test_what_cannot_be_read_is_invalid_and_says_what_the_model_answered(folder):
    judge = VlmJudge.from_pretrained(folder, answer="text", max_new_tokens=6)
    batch = make_batch()
    scores = judge(batch)
    assert not scores.valid.any()
    assert scores.score.isnan().all()
    assert scores.parts["followed"].isnan().all()
    cut = "the answer was cut off at 6 tokens; raise max_new_tokens"
    for reason in scores.reason:
        assert reason == "; ".join(f"{name}: {cut}" for name in VIESCORE)
    values, reasons = read_all(["A fine\nedit.", "<think>It is"], torch.device("cpu"))
    assert values.isnan().all()
    assert reasons == [
        r"no grade could be read; the model answered 'A fine\nedit.'",
        "the answer ends within its reasoning; raise max_new_tokens",
    ]


@pytest.fixture(scope="module")
def seven(folder: str) -> Vlm:
    """The tiny model, trained to answer "Grade: 7", whatever it is asked."""
    vlm = load_vlm(folder)
    batch = make_batch(4)
    targets = vlm.processor.tokenizer("Grade: 7")["input_ids"]
    vlm.model.requires_grad_(True)
    optimizer = torch.optim.Adam(vlm.model.parameters(), lr=3e-3)
    for step in range(120):
        question = questions("viescore", False)[step % 4]
        answer = ("digits", "text")[step // 4 % 2]
        shown = [batch.source, batch.edited] if question.aspect.pair else [batch.edited]
        images = torch.stack([image[step % 4][None] for image in shown], dim=1)
        text = vlm.prompt(chat(question, batch.instruction[step % 4], answer)) + "Grade: 7<|endoftext|>"
        inputs = vlm.inputs([text], images)
        n = len(targets) + 1
        loss = torch.nn.functional.cross_entropy(
            vlm.model(**inputs).logits[0, -n - 1 : -1], inputs["input_ids"][0, -n:]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    vlm.model.requires_grad_(False)
    return vlm


def test_a_model_that_says_seven_grades_seven_in_both_ways(seven):
    batch = make_batch()
    by_text = VlmJudge(seven, "seven", answer="text", max_new_tokens=16)(batch)
    assert by_text.valid.all(), by_text.reason
    assert by_text.score.tolist() == pytest.approx([7, 7])
    n = len(seven.processor.tokenizer("Grade: 7", add_special_tokens=False)["input_ids"])
    cut = VlmJudge(seven, "seven", answer="text", max_new_tokens=n)(batch)
    assert not cut.valid.any(), "the grade is there, and perhaps it is not the whole of it"
    assert f"cut off at {n} tokens" in cut.reason[0]
    by_digits = VlmJudge(seven, "seven")(batch)
    assert by_digits.score.tolist() == pytest.approx([7 * 10 / 9] * 2, abs=0.5)


# Runs again, and what must be the same for it.


def test_two_runs_are_equal_and_carry_the_same_fingerprint(folder, judge, tmp_path):
    batch = make_batch()
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    again = VlmJudge.from_pretrained(str(elsewhere))
    assert torch.equal(again(batch).score, judge(batch).score)
    assert torch.equal(judge(batch).score, judge(batch).score)
    first, second = judge.fingerprint, again.fingerprint
    assert first.pop("model") == "tiny"
    assert second.pop("model") == str(elsewhere)
    assert first == second
    assert json.loads(json.dumps(first)) == first
    assert first["decoding"] == {"answer": "digits", "dtype": "float32"}


def test_the_fingerprint_tells_weights_prompts_examples_and_decoding_apart(folder, judge):
    def prompt_hash(**options: Any) -> str:
        return VlmJudge(load_vlm(folder), "tiny", **options).fingerprint["prompt_hash"]

    inside = [question.name for question in questions("viescore", True)]
    hashes = [
        judge.fingerprint["prompt_hash"],
        prompt_hash(criteria="hq_edit"),
        prompt_hash(apart=True),
        prompt_hash(answer="text"),
        prompt_hash(example=example(VIESCORE, 8)),
        prompt_hash(example=example(VIESCORE, 2)),
        prompt_hash(example=example(inside), apart=True),
        prompt_hash(example=dataclasses.replace(example(VIESCORE, 8), edited=torch.zeros(3, 32, 32))),
    ]
    assert len(set(hashes)) == len(hashes)
    other = load_vlm(folder)
    with torch.no_grad():
        other.model.get_output_embeddings().weight.mul_(1.5)
    assert model_hash(other) != judge.fingerprint["model_hash"]
    text = VlmJudge(load_vlm(folder), "tiny", answer="text", max_new_tokens=9).fingerprint["decoding"]
    greedy = {"do_sample": False, "num_beams": 1}
    assert text == {"answer": "text", **greedy, "max_new_tokens": 9, "dtype": "float32"}


def test_another_tokenizer_is_another_model_and_use_changes_nothing(folder, tmp_path):
    before = load_vlm(folder)
    first = model_hash(before)
    VlmJudge(before, "tiny")(make_batch(3))
    assert model_hash(before) == first
    shutil.copytree(folder, tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    rules = json.loads(file.read_text())
    vocab = rules["model"]["vocab"]
    a, b = [word for word in vocab if word.isalpha()][:2]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    file.write_text(json.dumps(rules))
    assert model_hash(load_vlm(str(tmp_path / "other"))) != first
    before.processor.image_processor.image_mean = [0.4, 0.5, 0.5]
    assert model_hash(before) != first


def test_a_bit_of_any_weight_or_buffer_is_another_model(folder, judge):
    vlm = load_vlm(folder)
    vlm.model.register_buffer("kept", torch.zeros(3, dtype=torch.bfloat16))
    seen = [judge.fingerprint["model_hash"], model_hash(vlm)]
    for value in vlm.model.state_dict().values():
        last = value.flatten()[-1:]  # a view
        last.copy_(torch.nextafter(last, torch.full_like(last, torch.inf)))
        seen.append(model_hash(vlm))
    assert len(set(seen)) == len(seen)
    assert len(seen) > 20


# Other models.


def test_a_model_of_another_kind_is_judged_by_its_own_processor_without_a_gradient(tmp_path):
    judge = VlmJudge.from_pretrained(save_llava(str(tmp_path / "llava")))
    batch = make_batch()
    scores = judge(batch)
    assert scores.valid.all()
    alone = torch.cat([judge(batch[i : i + 1]).score for i in range(2)])
    torch.testing.assert_close(alone, scores.score, rtol=1e-4, atol=1e-4)
    darker = judge(dataclasses.replace(batch, edited=batch.edited * 0.2))
    assert (darker.parts["clean"] != scores.parts["clean"]).all()
    assert not judge.differentiable
    with pytest.raises(ValueError, match="has no gradient with respect to the edited image"):
        judge(dataclasses.replace(batch, edited=batch.edited.clone().requires_grad_()))


def test_trained_checkpoints_load_or_are_refused_by_name(tmp_path):
    folder = save_judge(str(tmp_path / "UnifiedReward-2.0-qwen-7b"), "qwen2_5_vl")
    assert VlmJudge.from_pretrained(folder)(make_batch()).valid.all()
    for name, reason in (
        ("TIGER-Lab/EditReward-Qwen2.5-VL-7B", "its score comes from heads of its own"),
        ("EditScore/EditScore-7B", "it is a LoRA; give its base as checkpoint"),
        ("SpatialReward/SpatialReward-8B", "boxes and a list of grades"),
        ("CodeGoat24/UnifiedReward-7b-v1.5", "LLaVA-OneVision's first code"),
        ("CodeGoat24/UnifiedReward-Think-7b", "LLaVA-OneVision's first code"),
    ):
        with pytest.raises(ValueError, match=f"{name}' cannot be a vlm_judge: .*{reason}"):
            VlmJudge.from_pretrained(name)


def test_an_adapter_is_merged_and_one_of_another_model_is_refused(folder, judge, tmp_path):
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file

    torch.manual_seed(2)
    config = LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False)
    adapter = str(tmp_path / "EditScore-7B")
    get_peft_model(load_vlm(folder).model, config).save_pretrained(adapter)
    adapted = VlmJudge.from_pretrained(folder, adapter=adapter)
    assert not torch.equal(adapted(make_batch()).score, judge(make_batch()).score)
    assert adapted.fingerprint["model_hash"] != judge.fingerprint["model_hash"]
    assert adapted.fingerprint["model"] == f"{folder}+{adapter}"
    file = Path(adapter) / "adapter_model.safetensors"
    save_file({f"x.{name}": weight for name, weight in load_file(file).items()}, file)
    with pytest.raises(ValueError, match=r"adapter .*EditScore-7B' does not fit"):
        VlmJudge.from_pretrained(folder, adapter=adapter)


@pytest.mark.parametrize(("base", "warned"), [("Qwen/Other-VL", True), ("Qwen/Own-VL", False), (None, False)])
def test_an_adapter_that_names_another_base_is_said(folder, tmp_path, base, warned):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules=["q_proj", "v_proj"], r=2)
    get_peft_model(load_vlm(folder).model, config).save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        load_adapter(load_vlm(folder).model, str(tmp_path), "Qwen/Own-VL")
    found = [str(one.message) for one in said if "was trained on" in str(one.message)]
    assert found == ([f"adapter '{tmp_path}' was trained on {base} and is applied to Qwen/Own-VL"] * warned)


@pytest.mark.parametrize("fault", ["damaged", "shape"])
def test_weights_that_cannot_be_loaded_are_told_with_the_model_s_name(folder, tmp_path, fault):
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    file = broken / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    save_file({**weights, name: weights[name][:-1].clone()}, file, {"format": "pt"})
    if fault == "damaged":
        file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"vision-language model '.*broken' cannot be loaded: "):
        load_judge(str(broken))


def test_what_is_no_vision_language_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere' cannot be loaded"):
        load_judge(str(tmp_path / "nowhere"))
    transformers.CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_judge(str(tmp_path))


# Endpoints.


class Handler(BaseHTTPRequestHandler):
    """A chat completion server that answers with what `reply` makes of the question's text."""

    seen: ClassVar[list[dict[str, Any]]] = []
    reply: ClassVar[Callable[[str], tuple[int, bytes] | None]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({"key": self.headers["Authorization"], **body})
        found = type(self).reply(body["messages"][-1]["content"][-1]["text"])
        if found is None:  # hangs up
            self.close_connection = True
            return
        status, content = found
        self.send_response(status, None if status == 200 else f"no {self.headers['Authorization']}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def completion(text: Any, finish_reason: Any = "stop", **more: Any) -> bytes:
    said = {"role": "assistant", "content": text, **more}
    choice = {"index": 0, "message": said, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 100, "completion_tokens": 7}
    return json.dumps({"id": "1", "model": "m", "choices": [choice], "usage": usage}).encode()


GRADES = {"followed": 8, "preserved": 5, "natural": 9, "clean": 4}


def graded(text: str) -> tuple[int, bytes] | None:
    """The grade of the aspect that a text asks for; some instructions make it fail."""
    for fault, found in (
        ("busy", (429, b"{}")),
        ("broken", (500, b"{}")),
        ("nonsense", (200, b"<html>")),
        ("refused", (400, b"{}")),
        ("empty", (200, completion(None))),
        ("silent", None),
        ("prose", (200, completion("A fine edit."))),
        ("cut", (200, completion("Grade: 7", "length"))),
        ("thought", (200, completion("<think>Grade: 7"))),
        ("withheld", (200, completion("Grade: 7", "content_filter"))),
        ("no words", (200, completion(None, refusal="I cannot judge\nthis."))),
        ("aborted", (200, completion("Grade: 7", "abort"))),
        ("other", (200, b'{"choices": []}')),
    ):
        if f'"{fault}"' in text:
            return found
    for aspect in CRITERIA["viescore"]:
        if aspect.question.rpartition("\n")[2] in text:
            return 200, completion(f"It is so.\nGrade: {GRADES[aspect.name]}")
    return 400, b"{}"


def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that grades every chat, while it runs."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    Handler.seen.clear()
    Handler.reply = staticmethod(graded)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}/v1"
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from served(monkeypatch)


def test_an_endpoint_sees_the_images_and_grades_each_aspect(server):
    judge = load_scorer("rewardedit.scorers.vlm_judge:VlmJudge", checkpoint=f"{server}#m", seed=3)
    batch = make_batch()
    scores = judge(batch)
    for name, grade in GRADES.items():
        assert scores.parts[name].tolist() == [grade, grade]
    assert scores.score.tolist() == pytest.approx([math.sqrt(5 * 4)] * 2)
    assert len(Handler.seen) == 8
    asked = [one for one in Handler.seen if f'"{batch.instruction[1]}"' in str(one["messages"])]
    assert len(asked) == 2
    content = asked[0]["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    for part, image in zip(content, (batch.source[1], batch.edited[1]), strict=False):
        head, _, data = part["image_url"]["url"].partition(",")
        assert head == "data:image/png;base64"
        sent = to_tensor(Image.open(io.BytesIO(base64.b64decode(data))), 3)
        assert (sent - image).abs().max() <= 0.5 / 255 + 1e-6
    assert {one["model"] for one in Handler.seen} == {"m"}
    assert {(one["seed"], one["temperature"], one["max_tokens"]) for one in Handler.seen} == {(3, 0.0, 256)}
    usage = judge.endpoint.usage
    assert dataclasses.astuple(usage) == (8, 0, 800, 56)
    assert judge.fingerprint["endpoint"] == server
    assert judge.fingerprint["seed"] == 3
    assert torch.equal(judge(batch).score, scores.score)


def test_an_example_is_an_answered_turn_of_the_chat(server):
    judge = VlmJudge(Endpoint(server, "m"), "m", example=example(VIESCORE, 6.5))
    assert judge(make_batch(2)[1:]).valid.all()
    turns = Handler.seen[0]["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == "It is there and all else is kept.\nGrade: 6.5"
    images = [part["image_url"]["url"] for turn in (turns[0], turns[2]) for part in turn["content"][:-1]]
    assert len(set(images)) == len(images)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refused", "no answer: .*400"),
        ("nonsense", "no answer: .*expected a chat completion; got <html>"),
        ("other", "no answer: .*expected a chat completion"),
        ("empty", "no grade could be read; the model answered ''"),
        ("prose", "no grade could be read; the model answered 'A fine edit.'"),
        ("cut", "the answer was cut off at 256 tokens; raise max_new_tokens"),
        ("thought", "the answer ends within its reasoning; raise max_new_tokens"),
        ("withheld", r"the endpoint withheld the answer \(content_filter\)"),
        ("no words", r"the model refused to answer: I cannot judge this\."),
        ("aborted", r"the answer did not come to its own end \(abort\)"),
    ],
)
def test_a_row_that_gets_no_grade_is_invalid_and_the_others_are_not(server, fault, reason):
    judge = VlmJudge(Endpoint(server, "m", pause=0.001, retries=1), "m")
    batch = dataclasses.replace(make_batch(), instruction=["add a hat", fault])
    scores = judge(batch)
    assert scores.valid.tolist() == [True, False]
    assert scores.score[1].isnan()
    assert scores.parts["followed"][1].isnan()
    assert scores.parts["natural"].tolist() == [9, 9]
    assert scores.reason[1] is not None
    assert re.match(f"followed: {reason}", scores.reason[1]), scores.reason[1]


@pytest.mark.parametrize(("fault", "reason"), [("busy", "429"), ("broken", "500"), ("silent", "closed")])
def test_an_endpoint_that_may_answer_later_stops_the_judging(server, fault, reason):
    """A row that was not judged would stand in a finished result as one that cannot be."""
    judge = VlmJudge(Endpoint(server, "m", pause=0.001, retries=1), "m")
    with pytest.raises(EndpointError, match=reason):
        judge(dataclasses.replace(make_batch(), instruction=["add a hat", fault]))
    assert judge(make_batch()).valid.all()


def test_each_pause_is_twice_the_one_before(server, monkeypatch):
    pauses = []
    monkeypatch.setattr(
        "rewardedit.language.endpoint._Stop.within", lambda self, seconds: pauses.append(seconds)
    )
    Handler.reply = staticmethod(lambda text: (503, b"{}"))
    with pytest.raises(EndpointError, match="503"):
        VlmJudge(Endpoint(server, "m", pause=1, retries=4, at_once=1), "m")(make_batch(1))
    assert pauses[:4] == [1, 2, 4, 8]


def test_an_endpoint_that_sends_elsewhere_is_asked_once(server):
    Handler.reply = staticmethod(lambda text: (307, b"{}"))
    endpoint = Endpoint(server, "m", pause=0.001, retries=3)
    (refused,) = endpoint.answer([[{"role": "user", "content": [{"type": "text", "text": "?"}]}]])
    assert isinstance(refused, EndpointError)
    assert (refused.status, len(Handler.seen)) == (307, 1)


def test_a_key_that_is_refused_stops_and_is_never_told(server, monkeypatch, caplog):
    judge = VlmJudge(Endpoint(server, "m", "OPENAI_API_KEY", pause=0.001, retries=1), "m")
    assert judge(make_batch()).valid.all()
    Handler.reply = staticmethod(lambda text: (401, b"{}"))
    refusal = r"127\.0\.0\.1.* model 'm': HTTP Error 401: no Bearer \*\*\*"
    with pytest.raises(EndpointError, match=refusal) as told:
        judge(make_batch())
    assert told.value.status == 401
    Handler.reply = staticmethod(lambda text: (400, b"sk-secret"))
    scores = judge(make_batch())
    assert not scores.valid.any()
    assert Handler.seen[0]["key"] == "Bearer sk-secret"
    said = [*scores.reason, str(told.value), repr(judge.endpoint), str(judge.fingerprint), caplog.text]
    assert "sk-secret" not in "".join(str(text) for text in said)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\nsecret")
    with pytest.raises(EndpointError, match="OPENAI_API_KEY: expected a key of plain characters") as refused:
        judge(make_batch())
    assert "secret" not in str(refused.value)


def test_a_refusal_says_why_and_never_a_part_of_the_key(server):
    chat = [[{"role": "user", "content": [{"type": "text", "text": "?"}]}]]
    said = b'{"error": "images are not supported"}' + b"sk-secret" * 60
    Handler.reply = staticmethod(lambda text: (400, said))
    (refused,) = Endpoint(server, "m", "OPENAI_API_KEY", pause=0.001, retries=1).answer(chat)
    assert "images are not supported" in str(refused)
    assert "***" in str(refused)
    assert "s" not in str(refused).rpartition("}")[2]
    Handler.reply = staticmethod(
        lambda text: (200, b"x" * 90 + b"Bearer sk-secret")
    )  # an answer that is none
    (refused,) = Endpoint(server, "m", "OPENAI_API_KEY", pause=0.001, retries=0).answer(chat)
    assert str(refused).endswith("Bearer ***")


def test_failed_calls_count_and_cost_no_tokens(server):
    endpoint = Endpoint(server, "m", pause=0.001, retries=2)
    VlmJudge(endpoint, "m")(dataclasses.replace(make_batch(1), instruction=["nonsense"]))
    # Two questions with the instruction fail three times each; the two without are answered.
    assert dataclasses.astuple(endpoint.usage) == (8, 6, 200, 14)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("http://localhost:1/v1", {}, "expected URL#MODEL"),
        ("http://localhost:1/v1#m", {"adapter": "x"}, "expected URL#MODEL"),
        ("http://localhost:1/v1#m", {"digit_ids": list(range(10))}, "an endpoint with answer='digits'"),
        ("http://localhost:1/v1#m", {"answer": "digits", "digit_ids": [1, 2]}, "expected ten tokens"),
        ("http://localhost:1/v1#m", {"min_digit_probability": 0}, "min_digit_probability: expected 0 to 1"),
        ("http://localhost:1/v1#m", {"answer": "guess"}, "answer: expected one of digits, text; got 'guess'"),
        ("http://me:sk-1@localhost/v1#m", {}, "a key belongs in an environment variable"),
        ("http://localhost/v1?key=sk-1#m", {}, "a key belongs in an environment variable"),
    ],
)
def test_endpoints_that_cannot_be_asked_are_refused(url, options, message):
    with pytest.raises(ValueError, match=message) as refused:
        VlmJudge.from_pretrained(url, **options)
    assert "sk-1" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "Good.\n"}, {"type": "text", "text": "Grade: 7"}],
        [{"type": "thinking", "thinking": "Grade: 2"}, {"type": "output_text", "text": "Grade: 7"}],
        ["Grade: ", "7"],
        "Grade\uff1a7\r\n",
    ],
)
def test_the_parts_of_a_message_are_read_as_one_text(server, content):
    for reason in ("stop", None, "EOS"):
        Handler.reply = staticmethod(lambda text, reason=reason: (200, completion(content, reason)))
        assert VlmJudge(Endpoint(server, "m"), "m")(make_batch(1)).score.tolist() == [7]


def test_a_packaged_model_is_a_judge_by_its_name():
    judge = load_scorer("vlm_judge", checkpoint="shapes/vlm")
    assert judge.fingerprint["model"] == "shapes/vlm"
    assert judge(make_batch(1)).valid.all()


def test_a_gradient_is_not_asked_of_an_endpoint(server):
    batch = make_batch()
    edited = batch.edited.clone().requires_grad_()
    with pytest.raises(ValueError, match="has no gradient"):
        VlmJudge(Endpoint(server, "m"), "m")(dataclasses.replace(batch, edited=edited))
    assert not Handler.seen


def test_the_least_grades_are_combined_by_hand():
    asked = questions("viescore", True)
    values = {question.name: torch.tensor([float(i)]) for i, question in enumerate(asked, 1)}
    # Inside: followed 1, preserved 2, natural 3, clean 4; outside: preserved 5, natural 6, clean 7.
    found = {name: float(value) for name, value in combine(asked, values).items()}
    assert found == {
        "consistency": 1,
        "consistency_inside": 1,
        "consistency_outside": 5,
        "quality": 3,
        "quality_inside": 3,
        "quality_outside": 6,
    }
