"""Vision-language models that a judge loads, as tiny random ones: processors, weights and adapters."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from rewardedit.language.judge_models import load_judge
from rewardedit.language.vlm import Vlm, load_vlm
from rewardedit.scorers.vlm_judge import VlmJudge
from tests.models import QWEN_VISION, save_judge
from tests.scorers.test_vlm_judge import make_batch

Weights = dict[str, torch.Tensor]


def save_qwen3(folder: str, kind: str, nested: bool = False) -> str:
    """A tiny Qwen3-VL or Qwen3.5 with all that a published one has, as its video processor's settings.

    Args:
        nested: the settings of all processors are in one file, as newer folders have them.
    """
    save_judge(folder, "qwen2_5_vl")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    older = transformers.AutoConfig.from_pretrained(folder)
    image = transformers.Qwen2VLImageProcessorPil.from_pretrained(folder).to_dict()
    shutil.rmtree(folder)
    vision: dict[str, Any] = {**QWEN_VISION, "num_position_embeddings": 16}
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "pad_token_id": tokenizer.pad_token_id,
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    tokens = {
        name: getattr(older, name) for name in ("image_token_id", "video_token_id", "vision_start_token_id")
    }
    tokens["vision_end_token_id"] = tokenizer.convert_tokens_to_ids("<|vision_end|>")
    torch.manual_seed(0)
    model: Any
    if kind == "qwen3_vl":
        vision["deepstack_visual_indexes"] = [0]
        text["rope_parameters"] = rope
        config = transformers.Qwen3VLConfig(vision_config=vision, text_config=text, **tokens)
        model = transformers.Qwen3VLForConditionalGeneration(config)
    else:
        text["layer_types"] = ["linear_attention", "full_attention"]
        text["rope_parameters"] = {**rope, "partial_rotary_factor": 1.0}
        text |= {"linear_key_head_dim": 8, "linear_num_key_heads": 2}
        text |= {"linear_value_head_dim": 8, "linear_num_value_heads": 2}
        config = transformers.Qwen3_5Config(vision_config=vision, text_config=text, **tokens)
        model = transformers.Qwen3_5ForConditionalGeneration(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image["image_processor_type"] = "Qwen2VLImageProcessorFast"
    video = {**image, "video_processor_type": "Qwen3VLVideoProcessor"}
    named = {"processor_class": "Qwen3VLProcessor"}
    if nested:
        files = {"processor_config": {"image_processor": image, "video_processor": video, **named}}
    else:
        files = {"preprocessor_config": {**image, **named}, "video_preprocessor_config": {**video, **named}}
    for name, values in files.items():
        Path(folder, f"{name}.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_judge(str(tmp_path_factory.mktemp("qwen")), "qwen2_5_vl")


def with_weights(folder: str, to: Path, change: Callable[[Weights], Weights]) -> str:
    """A copy of a model or an adapter with changed weights."""
    shutil.copytree(folder, to)
    file = next(to.glob("*.safetensors"))
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    return str(to)


@pytest.mark.parametrize(
    ("kind", "nested"), [("qwen3_vl", False), ("qwen3_vl", True), ("qwen3_5", False), ("qwen3_5", True)]
)
def test_a_qwen_with_settings_for_videos_is_loaded_and_grades(kind, nested, tmp_path):
    judge = VlmJudge.from_pretrained(save_qwen3(str(tmp_path / "model"), kind, nested))
    assert judge.model.config.model_type == kind
    assert not judge.differentiable
    batch = make_batch()
    scores = judge(batch)
    assert scores.valid.all()
    for part in (scores.score, *scores.parts.values()):
        assert part.isfinite().all()
        assert ((part >= 0) & (part <= 10)).all()
    alone = torch.cat([judge(batch[i : i + 1]).score for i in range(2)])
    torch.testing.assert_close(alone, scores.score, rtol=1e-4, atol=1e-4)
    darker = judge(dataclasses.replace(batch, edited=batch.edited * 0.2))
    assert (darker.parts["clean"] != scores.parts["clean"]).all()
    written = VlmJudge.from_pretrained(str(tmp_path / "model"), answer="text", max_new_tokens=2)(batch)
    assert "the answer was cut off at 2 tokens; raise max_new_tokens" in written.reason[0]


# Weights that are not the model's.


def without(lost: str) -> Callable[[Weights], Weights]:
    return lambda found: {name: weight for name, weight in found.items() if lost not in name}


@pytest.mark.parametrize("load", [load_vlm, load_judge])
@pytest.mark.parametrize(
    "head",
    [
        "rm_head.0.weight",
        "rm_heads.head_0.0.bias",
        "score.weight",
        "v_head.summary.bias",
        "value_head.weight",
    ],
)
def test_a_reward_head_is_refused_whatever_the_folder_is_called(load, head, qwen, tmp_path):
    folder = with_weights(qwen, tmp_path / "mine", lambda found: {**found, head: torch.zeros(1, 32)})
    with pytest.raises(ValueError, match=rf"mine' cannot be loaded: it has a reward head .*\({head}\)"):
        load(folder)


@pytest.mark.parametrize("load", [load_vlm, load_judge])
def test_weights_of_another_class_are_refused(load, qwen, tmp_path):
    extra = {f"expert.{i}.weight": torch.zeros(2, 2) for i in range(5)}
    folder = with_weights(qwen, tmp_path / "mine", lambda found: found | extra)
    with pytest.raises(ValueError, match=r"mine' cannot be loaded: .* has weights that Qwen2_5_VL") as why:
        load(folder)
    assert "(expert.0.weight, expert.1.weight, expert.2.weight, … (5 in all))" in str(why.value)


@pytest.mark.parametrize("load", [load_vlm, load_judge])
@pytest.mark.parametrize(
    "lost", ["layers.0.self_attn.q_proj.weight", "embed_tokens.weight", "lm_head.weight"]
)
def test_a_checkpoint_without_some_weights_is_refused(load, lost, qwen, tmp_path):
    folder = with_weights(qwen, tmp_path / "mine", without(lost))
    with pytest.raises(ValueError, match=rf"mine' cannot be loaded: .* lacks weights of Qwen2_5_VL.*{lost}"):
        load(folder)


def test_a_model_of_another_kind_is_refused_for_its_weights_too(tmp_path):
    folder = save_qwen3(str(tmp_path / "model"), "qwen3_vl")
    headed = with_weights(folder, tmp_path / "head", lambda found: {**found, "score.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="head' cannot be loaded: it has a reward head"):
        load_judge(headed)
    lost = "visual.blocks.0.norm1.weight"
    less = with_weights(folder, tmp_path / "less", without(lost))
    with pytest.raises(ValueError, match=f"less' cannot be loaded: .* lacks weights of Qwen3VL.*{lost}"):
        load_judge(less)


def test_an_embedding_that_is_the_head_too_is_not_missing(qwen, tmp_path):
    model = transformers.AutoModelForImageTextToText.from_pretrained(qwen)
    model.config.tie_word_embeddings = True
    model.config.get_text_config().tie_word_embeddings = True
    model.tie_weights()
    folder = str(shutil.copytree(qwen, tmp_path / "tied"))
    model.save_pretrained(folder)
    assert not any("lm_head" in name for name in load_file(Path(folder, "model.safetensors")))
    assert torch.equal(load_judge(folder).model.lm_head.weight, model.lm_head.weight)


# Adapters.


def save_lora(folder: Path, vlm: Vlm, targets: list[str]) -> str:
    torch.manual_seed(2)
    config = LoraConfig(target_modules=targets, r=2, init_lora_weights=False)
    get_peft_model(vlm.model, config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def adapter(qwen: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A LoRA on the attention of the language model and the vision tower."""
    return save_lora(tmp_path_factory.mktemp("adapter"), load_vlm(qwen), ["q_proj", "v_proj", "qkv"])


def as_before(found: Weights) -> Weights:
    """An adapter's weights as transformers 4.51 and earlier had them called."""
    renamed = {}
    for name, weight in found.items():
        name = name.replace("base_model.model.model.language_model.", "base_model.model.model.")
        renamed[name.replace("base_model.model.model.visual.", "base_model.model.visual.")] = weight
    return renamed


def test_an_adapter_under_older_names_gives_the_same_scores(qwen, adapter, tmp_path):
    older = with_weights(adapter, tmp_path / "EditScore-7B", as_before)
    names = set(load_file(Path(older, "adapter_model.safetensors")))
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    assert "base_model.model.visual.blocks.0.attn.qkv.lora_A.weight" in names
    assert not names & set(load_file(Path(adapter, "adapter_model.safetensors")))
    batch = make_batch()
    scores = VlmJudge.from_pretrained(qwen, adapter=older)(batch).score
    assert torch.equal(scores, VlmJudge.from_pretrained(qwen, adapter=adapter)(batch).score)
    assert not torch.equal(scores, VlmJudge.from_pretrained(qwen)(batch).score)


def test_an_adapter_of_a_model_of_another_kind_is_merged(tmp_path):
    folder = save_qwen3(str(tmp_path / "model"), "qwen3_vl")
    lora = save_lora(tmp_path / "lora", load_judge(folder), ["q_proj", "qkv"])
    batch = make_batch()
    adapted = VlmJudge.from_pretrained(folder, adapter=lora)(batch)
    assert adapted.valid.all()
    assert not torch.equal(adapted.score, VlmJudge.from_pretrained(folder)(batch).score)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: {f"x.{name}": one for name, one in found.items()}, ""),
        (without("layers.1."), r"layers\.1\."),
        (lambda found: {**found, "base_model.model.rm_head.weight": torch.zeros(1, 32)}, "rm_head"),
        (lambda found: {name: one.repeat(2, 2) for name, one in found.items()}, "size mismatch"),
    ],
    ids=["other names", "missing", "more", "another size"],
)
@pytest.mark.parametrize("names", [lambda found: found, as_before], ids=["present", "older"])
def test_an_adapter_that_does_not_fit_is_refused(change, reason, names, qwen, adapter, tmp_path):
    other = with_weights(adapter, tmp_path / "lora", lambda found: change(names(found)))
    with pytest.raises(ValueError, match=rf"(?s)adapter .*lora' does not fit .*{reason}"):
        load_vlm(qwen, adapter=other)
