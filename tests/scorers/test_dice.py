"""DICE: score and parts by hand, the model's two parts, checkpoints, and refusals."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from rewardedit import EditBatch, load_scorer
from rewardedit.batch import Scores
from rewardedit.cli import main
from rewardedit.language.answers import Answer
from rewardedit.language.choices import choice_probabilities
from rewardedit.language.vlm import Vlm, load_vlm, quantised
from rewardedit.regions import change_detector
from rewardedit.regions.change_detector import ChangeDetector
from rewardedit.regions.change_map import dilated
from rewardedit.regions.differences import COMMANDS, Detection, Difference, covered
from rewardedit.scorers.base import Scorer
from rewardedit.scorers.dice import Analysis, Dice, measures
from rewardedit.scorers.dice_clip import masked, mean_colour
from rewardedit.scorers.dice_models import DiceSource, ModelOptions, load_dice, save_dice
from rewardedit.scorers.dice_rules import CoherenceRules
from rewardedit.scorers.dice_text import DICE_SETTINGS, DiceFormat, parse_differences
from rewardedit.scorers.dice_vlm import DiceVlm, Verdict, VlmCoherence, VlmDetector
from rewardedit.scorers.load import models_of
from tests.models import VLMS, save_judge
from tests.scorers.dice_models import CUP, FOUND, INSTRUCTION, images, save_dice_vlm

YES = Verdict(True, 0.9, "")
NO = Verdict(False, 0.1, "")
RULES_ONLY = {"detector": "change", "coherence": "rules"}


def one(command: str = "ADD", box: tuple[float, ...] = (0.0, 0.0, 0.5, 0.5), confidence: float = 1.0):
    (kind,) = (name for name in COMMANDS if name == command)
    x0, y0, x1, y1 = box
    return Difference(kind, "cup", (x0, y0, x1, y1), confidence)


def batch(instruction: str = INSTRUCTION) -> EditBatch:
    source, edited = images()
    return EditBatch(source, [instruction], edited)


class Says:
    """A detector and judge with fixed results."""

    def __init__(self, detection: Detection, *verdicts: Verdict) -> None:
        self.detection = detection
        self.verdicts = list(verdicts)

    def detect(self, batch: EditBatch) -> list[Detection]:
        return [self.detection] * len(batch)

    def judge(self, source, edited, instruction, differences) -> list[Verdict]:
        return self.verdicts


def scores_of(detection: Detection, *verdicts: Verdict, instruction: str = INSTRUCTION) -> Scores:
    says = Says(detection, *verdicts)
    return Dice(says, says)(batch(instruction))


def test_the_score_is_the_share_of_area_that_is_asked_for():
    """Boxes of a 10 × 10 image: 25 pixels, asked for; 50, not; 10 of these are in both."""
    differences = (one(confidence=0.8), one("EDIT", (0.4, 0.0, 0.9, 1.0), 0.4))
    found = measures(Analysis(differences, (YES, NO), 1), True, 10, 10)
    union = 25 + 50 - 5
    assert found["score"] == pytest.approx(1 - 50 / union)
    assert found["coherent"] == 0.5
    assert found["unwanted_area"] == 0.5
    assert (found["differences"], found["unchanged"], found["dropped"]) == (2, 0, 1)
    assert found["confidence"] == pytest.approx(0.6)


def test_overlapping_boxes_count_once():
    twice = (one(), one("EDIT"), one("REMOVE", (0.5, 0.5, 1.0, 1.0)))
    assert measures(Analysis(twice, (NO, NO, YES), 0), True, 10, 10)["score"] == 0.5
    assert int(covered([one(), one()], 10, 10).sum()) == 25


def test_no_change_is_a_failure_only_if_something_was_asked():
    nothing = Detection((), 0)
    asked = scores_of(nothing)
    assert (asked.score.tolist(), asked.parts["unchanged"].tolist()) == ([0.0], [1.0])
    assert scores_of(nothing, instruction=" ").score.tolist() == [1.0]
    changed = scores_of(Detection((one(),), 1), instruction="")
    assert changed.score.tolist() == [0.0]  # without a question to the judge
    assert changed.parts["unwanted_area"].tolist() == [0.25]


def test_unreadable_answers_are_invalid_and_never_unchanged():
    unread = scores_of(Detection((), 0, "no difference could be read; the model answered: hm"))
    assert unread.reason == ["no difference could be read; the model answered: hm"]
    assert math.isnan(unread.parts["unchanged"][0])
    most = scores_of(Detection((one(),), 3), YES)
    assert most.reason == ["2 of 3 items of the answer could not be read"]
    assert most.parts["dropped"].tolist() == [2]
    assert scores_of(Detection((one(),), 2), YES).valid.all()
    undecided = scores_of(Detection((one(), one()), 2), YES, Verdict(None, math.nan, "it said: hm"))
    assert undecided.reason == ["coherence: it said: hm"]
    with pytest.raises(ValueError, match="max_dropped: expected a number from 0 to 1; got 2"):
        Dice(Says(Detection(())), Says(Detection(())), max_dropped=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return save_dice_vlm(str(tmp_path_factory.mktemp("dice")))


@pytest.fixture(scope="module")
def dice(checkpoint) -> Scorer:
    return load_scorer("dice", checkpoint=checkpoint)


def test_a_model_finds_and_judges(dice):
    (analysis,) = dice.analyse(batch())
    (found,) = analysis.differences
    assert (found.command, found.subject, found.box) == ("ADD", "red cup", CUP.box)
    assert 0.5 < found.confidence < 1
    (verdict,) = analysis.verdicts
    assert (verdict.coherent, verdict.reason) == (True, "a cup.")
    assert 0.5 < verdict.probability <= 1
    scores = dice(batch())
    assert scores.score.tolist() == [1.0]
    assert scores.parts["confidence"].tolist() == pytest.approx([found.confidence])
    twice = EditBatch(
        *(torch.cat([image, image.flip(3)]) for image in images()[:1]),
        [INSTRUCTION] * 2,
        torch.cat([images()[1], images()[1].flip(3)]),
    )
    assert dice(twice).score[0] == scores.score[0]


def test_a_pair_is_seen_in_both_orders_where_asked(checkpoint, dice):
    """What is added in the reverse order was removed; the confidence is that of the reverse order."""
    both = load_scorer("dice", checkpoint=checkpoint, both_orders=True)
    added, removed = both.analyse(batch())[0].differences
    (one_order,) = dice.detector.detect(batch())[0].differences
    source, edited = images()
    (reverse,) = dice.detector.detect(EditBatch(edited, [INSTRUCTION], source))[0].differences
    assert added == one_order
    assert removed == replace(reverse, command="REMOVE")
    assert reverse.confidence != one_order.confidence
    with pytest.raises(ValueError, match="both_orders: has no effect with detector=change; leave it out"):
        Dice.from_pretrained(detector="change", coherence="rules", both_orders=True)


class Small(Vlm):
    """A model that runs out of memory on more than two prompts, and notes the prompts of each call."""

    calls: list[int]

    def answer(
        self, texts: list[str], images: Any, max_new_tokens: int = 64, repetition_penalty: float = 1.0
    ) -> list[Answer]:
        self.calls.append(len(texts))
        if len(texts) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().answer(texts, images, max_new_tokens, repetition_penalty)


def test_fewer_are_asked_where_memory_runs_out(dice):
    vlm = dice.detector.dice.vlm
    small = Small(vlm.model, vlm.processor)
    small.calls = []
    own = replace(dice.detector.dice, vlm=small)
    source, edited = images()
    several = EditBatch(source.repeat(5, 1, 1, 1), [INSTRUCTION] * 5, edited.repeat(5, 1, 1, 1))
    found = VlmDetector(own).detect(several)
    assert small.calls == [5, 2, 2, 1]
    assert found == [found[0]] * 5
    assert found[0].differences[0].box == CUP.box

    small.calls = []
    judge = VlmCoherence(own)
    verdicts = judge.judge(source[0], edited[0], INSTRUCTION, [CUP] * 9)
    assert small.calls == [8, 4, 2, 2, 2, 2, 1], "at most 8 at first"
    assert [verdict.reason for verdict in verdicts] == ["a cup."] * 9
    judge.judge(source[0], edited[0], INSTRUCTION, [CUP] * 3)
    assert small.calls[-2:] == [2, 1], "a limit once found is kept"


def test_confidence_is_the_command_s_share_by_all_of_its_tokens(dice):
    """Each command's likelihood from one pass over prompt and answer."""
    detector = dice.detector
    vlm = detector.dice.vlm
    source, edited = images()
    shown = torch.stack([source, edited], 1)
    prompt = detector.dice.detection_prompt()
    (analysis,) = dice.analyse(batch())
    logs = []
    start = FOUND.index("ADD")
    for command in COMMANDS:
        inputs = vlm.inputs([prompt + FOUND[:start] + command], shown)
        begin = vlm.inputs([prompt + FOUND[:start]], shown)["input_ids"].shape[1]
        logits = vlm.model(**inputs).logits[0, begin - 1 : -1].log_softmax(-1)
        logs.append(logits.gather(1, inputs["input_ids"][0, begin:, None]).sum())
    expected = torch.stack(logs).softmax(0)[0]
    assert analysis.differences[0].confidence == pytest.approx(float(expected), abs=1e-5)
    fixed = VlmDetector(detector.dice, "fixed").detect(batch())[0].differences
    assert [difference.confidence for difference in fixed] == [1.0]
    with pytest.raises(ValueError, match="confidence: expected one of likelihood, fixed; got 'high'"):
        Dice.from_pretrained(checkpoint=detector.dice.name, confidence="high")


@pytest.mark.parametrize("kind", VLMS)
def test_words_of_several_tokens_are_scored_whole(kind, tmp_path):
    vlm = load_vlm(save_judge(str(tmp_path), kind))
    source, edited = images()
    shown = torch.stack([source, edited], 1)
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "compare"}]
    prompt = vlm.prompt([{"role": "user", "content": content}])
    words = ["add", "remove the", "edit"]
    beginnings = ["", "grade: a cup"]
    found = choice_probabilities(vlm, prompt, shown, beginnings, words)
    before = vlm.inputs([prompt], shown)
    for row, beginning in enumerate(beginnings):
        logs = []
        for word in words:
            ids = vlm.tokens([beginning + word])
            more = {**before, "input_ids": torch.cat([before["input_ids"], ids], 1)}
            more["attention_mask"] = torch.ones_like(more["input_ids"])
            if "mm_token_type_ids" in more:
                more["mm_token_type_ids"] = torch.cat([before["mm_token_type_ids"], torch.zeros_like(ids)], 1)
            logits = vlm.model(**more).logits[0, -ids.shape[1] - 1 : -1].log_softmax(-1)
            each = logits.gather(1, ids[0, :, None])[:, 0]
            logs.append(each[len(vlm.tokens([beginning])[0]) if beginning else 0 :].sum())
        torch.testing.assert_close(found[row], torch.stack(logs).softmax(0), rtol=0, atol=1e-5)


def test_a_model_that_was_taught_nothing_makes_invalid_rows(tmp_path):
    scorer = load_scorer("dice", checkpoint=save_judge(str(tmp_path)), max_new_tokens=12)
    scores = scorer(batch())
    assert not scores.valid.any()
    assert "12 tokens" in scores.reason[0] or "no difference could be read" in scores.reason[0]
    unread = VlmCoherence(scorer.detector.dice, 12).judge(*(i[0] for i in images()), INSTRUCTION, [CUP])
    assert unread[0].coherent is None
    assert "neither YES nor NO" in unread[0].reason or "12 tokens" in unread[0].reason


def test_a_repetition_penalty_reaches_the_decoding(tmp_path):
    vlm = load_vlm(save_judge(str(tmp_path)))
    shown = torch.stack(images(), 1)
    prompt = vlm.prompt([{"role": "user", "content": [{"type": "image"}, {"type": "image"}]}])
    plain, again, strong = (str(vlm.answer([prompt], shown, 16, penalty)[0].text) for penalty in (1, 1, 1e9))
    assert plain == again != strong


def test_a_checkpoint_of_an_adapter_is_loaded_with_its_tokens(checkpoint, dice, tmp_path):
    vlm = load_vlm(checkpoint)
    torch.manual_seed(0)
    adapted = get_peft_model(vlm.model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    own = DiceVlm(vlm, DiceFormat(decimals=2, base=checkpoint), "own")
    save_dice(tmp_path, own, adapted)
    found = load_dice(str(tmp_path))
    assert found.format == DiceFormat(decimals=2, base=checkpoint)
    merged = adapted.merge_and_unload().state_dict()
    torch.testing.assert_close(found.vlm.model.state_dict(), merged)
    assert not torch.equal(merged["lm_head.weight"], torch.zeros(1))
    assert set(models_of("dice", checkpoint=str(tmp_path))) == {checkpoint, str(tmp_path)}
    (tmp_path / DICE_SETTINGS).write_text('{"colour": 1}')
    with pytest.raises(ValueError, match=r"dice.json: expected prompts"):
        load_dice(str(tmp_path))


def published(root: Path, width: int = 32) -> None:
    """A folder laid out as the published repositories: a merged base, and a LoRA beside it."""
    save_judge(str(root / "merged_base"), "idefics3", width)
    model = transformers.AutoModelForImageTextToText.from_pretrained(root / "merged_base")
    torch.manual_seed(0)
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(model, lora).save_pretrained(root / "lora" / "checkpoint-15")


def test_the_published_layout_is_read(tmp_path):
    published(tmp_path)
    options = ModelOptions("code", "none", longest_edge=64)
    found = load_dice(str(tmp_path), options)
    base = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "merged_base")
    key = "model.text_model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(found.vlm.model.state_dict()[key], base.state_dict()[key])
    named = {"checkpoint": str(tmp_path), "subfolder": "merged_base", "adapter": "lora/checkpoint-15"}
    again = load_dice(named, options)
    torch.testing.assert_close(again.vlm.model.state_dict(), found.vlm.model.state_dict())
    assert found.format.prompts == "code"
    assert load_dice(str(tmp_path), ModelOptions("code", "none")).vlm.processor.image_processor.size == {
        "longest_edge": 1456
    }
    scorer = load_scorer(
        "dice",
        detector=named,
        coherence="rules",
        compat="code",
        quantize="none",
        longest_edge=64,
        max_new_tokens=8,
    )
    assert scorer(batch()).score.shape == (1,)


def test_the_published_layout_is_read_in_four_bits(tmp_path):
    """By default: the base's language model in 4 bits, with the LoRA beside it, and the rest in fp16."""
    pytest.importorskip("bitsandbytes")
    published(tmp_path, width=64)  # bitsandbytes packs rows of 64
    scorer = load_scorer("dice", checkpoint=str(tmp_path), compat="code", longest_edge=64, max_new_tokens=8)
    model = scorer.detector.dice.vlm.model
    layers = {name: type(module).__name__ for name, module in model.named_modules()}
    few_bits = [name for name, kind in layers.items() if kind == "Linear4bit" and "lora" not in name]
    assert len(few_bits) == 14 + 4  # a layer with a LoRA holds the plain one
    assert all(name.startswith("model.text_model.layers.") for name in few_bits)
    states = [weight.quant_state for weight in model.parameters() if hasattr(weight, "quant_state")]
    assert {state.quant_type for state in states} == {"nf4"}
    assert not any(state.nested for state in states)
    for part in (model.model.vision_model, model.model.connector, model.lm_head):
        weights = [weight for name, weight in part.named_parameters() if "lora" not in name]
        assert {weight.dtype for weight in weights} == {torch.float16}
    scores = scorer(batch())
    assert scores.reason[0].startswith(("differences: ", "no difference could be read"))
    verdicts = scorer.judge.judge(*(image[0] for image in images()), INSTRUCTION, [CUP])
    assert verdicts[0].coherent is None, "a random model decides nothing"


def test_the_published_layout_may_lack_base_or_processor(tmp_path):
    published(tmp_path)
    base = save_judge(str(tmp_path.parent / f"{tmp_path.name}-base"), "idefics3")
    options = ModelOptions("code", "none", longest_edge=64)
    merged = {"checkpoint": str(tmp_path), "subfolder": "merged_base"}
    whole = load_dice(merged, options).vlm
    for file in (tmp_path / "merged_base").glob("*"):
        if file.name not in ("config.json", "generation_config.json", "model.safetensors"):
            file.unlink()
    with pytest.raises(ValueError, match=r"base: expected the model that was .* has no processor"):
        load_dice(merged, options)
    again = load_dice({**merged, "base": base}, options).vlm
    torch.testing.assert_close(again.model.state_dict(), whole.model.state_dict())
    assert again.processor.tokenizer.get_vocab() == whole.processor.tokenizer.get_vocab()

    adapter = {"checkpoint": str(tmp_path / "lora"), "adapter": "checkpoint-15", "base": base}
    torch.testing.assert_close(load_dice(adapter, options).vlm.model.state_dict(), whole.model.state_dict())


def test_the_code_opens_the_answer_and_penalises_for_the_detector(tmp_path):
    dice = DiceVlm(load_vlm(save_judge(str(tmp_path), "idefics3")), DiceFormat("code"), "x")
    opened = "assistant:"
    assert dice.detection_prompt().endswith(opened)
    assert not dice.coherence_prompt(INSTRUCTION, CUP).endswith(opened)
    plain = DiceVlm(dice.vlm, DiceFormat(), "x")
    assert plain.detection_prompt().endswith(opened)
    assert plain.coherence_prompt(INSTRUCTION, CUP).endswith(opened)
    assert (VlmDetector(dice).penalty, VlmDetector(plain).penalty) == (1.5, 1.0)
    told = Dice(VlmDetector(dice), VlmCoherence(dice)).fingerprint
    assert [told[part]["repetition_penalty"] for part in ("detector", "coherence")] == [1.5, 1.0]
    assert VlmCoherence(dice).max_new_tokens == 500


def test_other_layouts_are_refused(tmp_path):
    published(tmp_path)
    code = ModelOptions("code", "none")
    with pytest.raises(ValueError, match=r"subfolder: expected a folder with config.json in .*; got nowhere"):
        load_dice({"checkpoint": str(tmp_path), "subfolder": "nowhere"}, code)
    with pytest.raises(ValueError, match="expected a file inside of"):
        load_dice({"checkpoint": str(tmp_path / "lora"), "subfolder": "../merged_base"}, code)
    with pytest.raises(ValueError, match=r"expected one folder with adapter_config.json in .*; found none"):
        load_dice(str(tmp_path / "merged_base"), code)
    with pytest.raises(ValueError, match='are for compat="code"'):
        load_dice({"checkpoint": str(tmp_path), "subfolder": "merged_base"})
    with pytest.raises(ValueError, match="expected a model or a mapping with checkpoint, subfolder"):
        DiceSource.of({"model": "x"})
    with pytest.raises(ValueError, match=r"longest_edge: .* has no such setting"):
        load_dice(save_judge(str(tmp_path / "judge")), ModelOptions(longest_edge=64))


def test_published_models_are_quantised_once_and_their_vision_is_not():
    assert (ModelOptions("code").bits, ModelOptions().bits, ModelOptions("code", "none").bits) == (
        "4bit",
        None,
        None,
    )
    pytest.importorskip("bitsandbytes")
    config = quantised("4bit", "cpu", torch.float16, double=False)["quantization_config"]
    assert not config.bnb_4bit_use_double_quant
    assert quantised("4bit", "cpu", torch.float16)["quantization_config"].bnb_4bit_use_double_quant
    assert ".*connector" in config.llm_int8_skip_modules


def test_quantised_weights_are_on_the_process_s_own_gpu(monkeypatch):
    """As accelerate requires of a model that several processes train."""
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert quantised("4bit", "cuda", torch.bfloat16)["device_map"] == {"": torch.device("cuda:1")}
    assert quantised("4bit", "cuda:0", torch.bfloat16)["device_map"] == {"": torch.device("cuda:0")}


def test_without_a_checkpoint_the_error_names_all_ways():
    with pytest.raises(ValueError, match="detector: expected a checkpoint") as error:
        load_scorer("dice")
    for name in ("rewardedit train dice-detector", "shapes/dice", "detector=change", "coherence=rules"):
        assert name in str(error.value)
    with pytest.raises(ValueError, match=r"coherence: expected a checkpoint.*dice-coherence"):
        load_scorer("dice", detector="change")
    with pytest.raises(ValueError, match="not the reverse"):
        load_scorer("dice", detector="rules", coherence="change")
    with pytest.raises(ValueError, match='objects: goes with detector="change"'):
        load_scorer("dice", checkpoint="x", objects="sam3")
    with pytest.raises(ValueError, match="objects: expected one of grounded_sam, sam3; got 'eyes'"):
        load_scorer("dice", detector="change", coherence="rules", objects="eyes")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("checkpoint", "x"),
        ("compat", "code"),
        ("quantize", "4bit"),
        ("longest_edge", 64),
        ("max_new_tokens", 8),
        ("dtype", torch.float16),
    ],
)
def test_options_of_models_are_refused_without_one(option, value):
    with pytest.raises(ValueError, match=f"{option}: has no effect"):
        load_scorer("dice", detector="change", coherence="rules", **{option: value})


def test_an_answer_has_a_token_and_an_image_a_pixel(dice):
    for option in ("max_new_tokens", "longest_edge"):
        with pytest.raises(ValueError, match=rf"{option}: expected at least 1.*; got 0"):
            load_scorer("dice", checkpoint="x", **{option: 0})
    for part in (VlmDetector, VlmCoherence):
        with pytest.raises(ValueError, match="max_new_tokens: expected at least 1; got -1"):
            part(dice.detector.dice, max_new_tokens=-1)


def test_confidence_is_checked_and_fixed_without_a_model():
    with pytest.raises(ValueError, match="confidence: expected one of likelihood, fixed; got 'high'"):
        load_scorer("dice", detector="change", coherence="rules", confidence="high")
    found = []
    for confidence in ("likelihood", "fixed"):
        scorer = load_scorer("dice", detector="change", coherence="rules", confidence=confidence)
        found.append(float(scorer(batch()).parts["confidence"]))
    assert found[0] < found[1] == 1.0


def test_model_free_parts_load_no_model():
    assert models_of("dice", detector="change", coherence="rules") == []
    inner = {"detector": "change", "coherence": "own/judge"}
    assert models_of("dice_clip_t", checkpoint="own/clip", dice=inner) == ["own/clip", "own/judge"]
    scorer = load_scorer("dice", detector="change", coherence="rules")
    assert scorer.fingerprint == {}


def test_a_fingerprint_tells_models_and_prompts(dice, checkpoint):
    told = dice.fingerprint
    assert set(told) == {"detector", "coherence"}
    assert told["detector"]["model"] == checkpoint
    assert told["detector"]["prompt_hash"] == told["coherence"]["prompt_hash"]
    other = DiceVlm(dice.detector.dice.vlm, DiceFormat(), checkpoint)
    prompt = Dice(VlmDetector(other), CoherenceRules()).fingerprint["detector"]["prompt_hash"]
    assert prompt != told["detector"]["prompt_hash"]


def test_it_is_refused_as_a_reward_by_name(capsys):
    scorer = "{dice: {detector: change, coherence: rules}}"
    words = ["train", "magicbrush-refl-24gb", f"reward.scorer={scorer}", "--dry-run"]
    assert main(words) == 2
    assert "dice" in (told := capsys.readouterr().err)
    assert "no gradient" in told


def test_the_change_map_s_parts_are_found_with_their_commands():
    source = torch.full((1, 3, 64, 96), 0.5)
    square = torch.tensor([0.8, 0.1, 0.1])[:, None, None]
    source[0, :, 8:24, 8:24] = square
    source[0, :, 40:56, 8:24] = square
    edited = torch.full((1, 3, 64, 96), 0.5)
    edited[0, :, 8:24, 64:80] = square
    edited[0, :, 40:56, 8:24] = square.flip(0)
    (detection,) = ChangeDetector().detect(EditBatch(source, ["x"], edited))
    found = {difference.command: difference for difference in detection.differences}
    assert set(found) == {"ADD", "REMOVE", "EDIT"}
    for command, box in (("REMOVE", (8, 8, 24, 24)), ("ADD", (64, 8, 80, 24)), ("EDIT", (8, 40, 24, 56))):
        for edge, expected, side in zip(found[command].box, box, (96, 64, 96, 64), strict=True):
            assert abs(edge * side - expected) <= 3
        assert 0 < found[command].confidence < 0.1
    assert ChangeDetector().detect(EditBatch(source, ["x"], source))[0] == Detection((), 0)


def test_each_changed_part_is_looked_at_in_its_surroundings_alone(monkeypatch):
    source = torch.full((1, 3, 256, 320), 0.5)
    edited = source.clone()
    for y in range(24, 256, 64):
        for x in range(24, 320, 64):
            edited[0, 0, y : y + 16, x : x + 16] = 1.0
    pixels = []

    def counted(mask: torch.Tensor, radius: int) -> torch.Tensor:
        pixels.append(mask.numel())
        return dilated(mask, radius)

    monkeypatch.setattr(change_detector, "dilated", counted)
    (detection,) = ChangeDetector().detect(EditBatch(source, ["x"], edited))
    assert len(pixels) == len(detection.differences) == 20
    assert sum(pixels) < source[0, 0].numel()


@pytest.mark.parametrize(
    ("instruction", "command", "subject", "coherent"),
    [
        ("add a red cup", "ADD", "red cup", True),
        ("add a red cup", "ADD", "cup", True),
        ("add a red cup", "ADD", "blue cup", False),
        ("add a red cup", "EDIT", "red cup", False),
        ("remove the cup", "REMOVE", "object", True),
        ("remove the cup", "ADD", "cup", False),
        ("replace the cup with a lamp", "EDIT", "lamp", True),
        ("make the cup bigger", "EDIT", "cup", True),
        ("move the cup to the left", "REMOVE", "cup", True),
        ("move the cup to the left", "ADD", "cup", True),
        ("move the cup to the left", "EDIT", "cup", False),
        ("make the background blue", "EDIT", "sky", True),
        ("xyzzy", "EDIT", "cup", None),
    ],
)
def test_rules_compare_command_and_name(instruction, command, subject, coherent):
    difference = Difference(one(command).command, subject, (0.0, 0.0, 1.0, 1.0))
    source, edited = images()
    (verdict,) = CoherenceRules().judge(source[0], edited[0], instruction, [difference])
    assert verdict.coherent is coherent


def test_masked_regions_have_the_mean_colour_or_are_blurred():
    image = torch.zeros(1, 3, 8, 8)
    image[:, 0, :, 4:] = 1.0
    region = torch.zeros(1, 8, 8, dtype=torch.bool)
    region[:, :, :4] = True
    paint = mean_colour(image, region)
    assert paint.flatten().tolist() == [1.0, 0.0, 0.0]
    assert torch.equal(masked(image, region, paint)[:, :, :, :4], paint.expand(1, 3, 8, 4))
    assert torch.equal(masked(image, region, paint)[..., 4:], image[..., 4:])
    whole = torch.ones_like(region)
    assert mean_colour(image, whole)[0, 0] == 0.5
    blurred = masked(image, region, None)
    assert torch.equal(blurred[..., 4:], image[..., 4:])
    assert 0 < blurred[0, 0, 4, 3] < 1


def test_clip_i_hides_what_was_asked_and_clip_t_what_was_not():
    """An added object that is asked for leaves nothing to compare; one that is not stays visible."""
    source = torch.full((1, 3, 64, 64), 0.5)
    edited = source.clone()
    edited[:, 0, 16:48, 16:48] = 1.0
    options = {"checkpoint": "shapes/clip", "dice": {"detector": "change", "coherence": "rules"}}
    hidden, kept = (
        EditBatch(source, [text], edited) for text in ("add a red square", "remove the red square")
    )
    clip_i = load_scorer({"dice_clip_i": options})
    assert clip_i(hidden).score.tolist() == pytest.approx([1.0])
    plain = load_scorer("clip_i", checkpoint="shapes/clip", against="source")
    torch.testing.assert_close(clip_i(kept).score, plain(kept).score)
    clip_t = load_scorer({"dice_clip_t": options})
    plain_t = load_scorer("clip_t", checkpoint="shapes/clip")
    torch.testing.assert_close(clip_t(hidden).score, plain_t(hidden).score)
    assert abs(float(clip_t(kept).score - plain_t(kept).score)) > 1e-4
    unread = clip_t(EditBatch(source, ["xyzzy"], edited))
    assert unread.reason[0].startswith("coherence: instruction 'xyzzy'")
    with pytest.raises(ValueError, match="fill: expected one of mean, blur; got 'grey'"):
        load_scorer({"dice_clip_i": {**options, "fill": "grey"}})


@pytest.mark.parametrize("fill", ["mean", "blur"])
def test_where_nothing_is_visible_nothing_is_compared(fill):
    """Of 64 rows of pixels, all or 63 are hidden."""
    source, edited = torch.rand(2, 1, 3, 64, 64).unbind()
    for name, verdict in (("dice_clip_i", YES), ("dice_clip_t", NO)):
        scorer = load_scorer({name: {"checkpoint": "shapes/clip", "dice": RULES_ONLY, "fill": fill}})
        reasons = []
        for bottom in (1.0, 63 / 64):
            says = Says(Detection((one(box=(0.0, 0.0, 1.0, bottom)),), 1), verdict)
            scorer.dice = Dice(says, says)
            reasons += scorer(EditBatch(source, [INSTRUCTION], edited)).reason
        assert reasons == ["nothing is left to compare: 100.0 % of the image is masked out", None]


def test_options_of_the_command_line_reach_it(tmp_path, capsys):
    from rewardedit.images import to_pil

    source, edited = images()
    for name, image in (("a.png", source[0]), ("b.png", edited[0])):
        to_pil(image).save(tmp_path / name)
    spec = json.dumps({"dice": {"detector": "change", "coherence": "rules"}})
    words = [str(tmp_path / "a.png"), str(tmp_path / "b.png"), INSTRUCTION, "--scorer", spec]
    assert main(["score", *words]) == 0
    assert "unwanted_area 0.0000" in capsys.readouterr().out
    assert parse_differences(FOUND).items == 1
