"""Checkpoints with code of their own: nothing of it runs, nobody is asked, and the error says why."""

import io
import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardedit import load_editor, load_scorer
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.instructions.llm import load_chat_model
from rewardedit.language.judge_models import load_judge
from rewardedit.language.vlm import load_vlm
from rewardedit.models import resolve_model
from rewardedit.regions.detector import Detector
from rewardedit.regions.segmenter import Segmenter

CLASSES = (
    "AutoConfig",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForZeroShotObjectDetection",
    "AutoImageProcessor",
    "AutoProcessor",
    "AutoVideoProcessor",
)
REFUSED = "code of its own, which is never run"


class Call:
    """Unpickled, it writes the canary."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


class Planted:
    """A folder that holds a packaged model and code which writes a canary when it is imported."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.canary = folder.parent / "canary"
        if name:
            shutil.copytree(resolve_model(name), folder)
        else:
            folder.mkdir()
        self.code("evil.py")

    def code(self, file: str) -> None:
        kinds = "\n".join(f"class {name}: pass" for name in (*CLASSES, "Evil"))
        self.folder.joinpath(file).write_text(f"open({str(self.canary)!r}, 'w').close()\n{kinds}\n")

    def change(self, file: str, **values: Any) -> None:
        path = self.folder / file
        settings = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(settings | values))

    def pickled(self, file: str) -> None:
        torch.save({"a": torch.zeros(1), "b": Call(self.canary)}, self.folder / file)


AUTO_MAP = {name: f"evil.{name}" for name in CLASSES} | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}


def config(planted: Planted) -> None:
    planted.change("config.json", model_type="evil", auto_map=AUTO_MAP)


def tokenizer(planted: Planted) -> None:
    planted.change("tokenizer_config.json", tokenizer_class="Evil", auto_map=AUTO_MAP)


def image_processor(planted: Planted) -> None:
    values = {"image_processor_type": "Evil", "feature_extractor_type": None, "auto_map": AUTO_MAP}
    planted.change("preprocessor_config.json", **values)


def video_processor(planted: Planted) -> None:
    planted.change("video_preprocessor_config.json", video_processor_type="Evil", auto_map=AUTO_MAP)
    tokenizer(planted)


def processor(planted: Planted) -> None:
    planted.change("processor_config.json", processor_class="Evil", auto_map=AUTO_MAP)
    planted.change("tokenizer_config.json", processor_class="Evil", auto_map=AUTO_MAP)


def part_of_a_model(planted: Planted) -> None:
    settings = json.loads((planted.folder / "config.json").read_text())
    vision = {"model_type": "blip_vision_model", "auto_map": AUTO_MAP, "_name_or_path": str(planted.folder)}
    planted.change("config.json", text_config=settings["text_config"], vision_config=vision)


def pickled_weights(planted: Planted) -> None:
    (planted.folder / "model.safetensors").unlink()
    planted.pickled("pytorch_model.bin")


def pickled_under_another_name(planted: Planted) -> None:
    planted.pickled("model.safetensors")


def pickled_head(planted: Planted) -> None:
    planted.pickled("head.safetensors")


def pickled_pooling(planted: Planted) -> None:
    planted.pickled("pooling.safetensors")


def of_another_base(planted: Planted) -> None:
    """A trained scorer that is laid over a model with code of its own."""
    base = Planted(planted.folder.parent / "base", "shapes/vlm")
    base.canary = planted.canary
    config(base)
    planted.change("adiee.json", base=str(base.folder))


def pipeline_of_its_own(planted: Planted) -> None:
    planted.change("model_index.json", _class_name=["evil", "Evil"])


def pipeline_by_name(planted: Planted) -> None:
    planted.code("pipeline.py")
    planted.change("model_index.json", _class_name="Evil", custom_pipeline="pipeline")


def part_of_the_system(planted: Planted) -> None:
    planted.change("model_index.json", scheduler=["os", "system"])


def part_of_the_folder(planted: Planted) -> None:
    planted.code("unet/evil.py")
    planted.change("model_index.json", unet=["evil", "Evil"])


def part_in_a_library_s_name(planted: Planted) -> None:
    planted.code("unet/diffusers.py")


def part_that_asks(planted: Planted) -> None:
    planted.code("text_encoder/evil.py")
    planted.change("text_encoder/config.json", model_type="evil", auto_map=AUTO_MAP)
    planted.change("model_index.json", text_encoder=["transformers", "AutoModel"])


def tokenizer_that_asks(planted: Planted) -> None:
    planted.code("tokenizer/evil.py")
    planted.change("tokenizer/tokenizer_config.json", tokenizer_class="Evil", auto_map=AUTO_MAP)
    planted.change("model_index.json", tokenizer=["transformers", "AutoTokenizer"])


def pickled_unet(planted: Planted) -> None:
    (planted.folder / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    planted.pickled("unet/diffusion_pytorch_model.bin")


def pickled_lora(planted: Planted) -> None:
    planted.pickled("pytorch_lora_weights.safetensors")


def adapter(planted: Planted) -> None:
    """PEFT's adapter of pickled weights, which names the classes of its base."""
    mapping = {"parent_library": "evil", "base_model_class": "Evil"}
    planted.change(
        "adapter_config.json",
        peft_type="LORA",
        auto_mapping=mapping,
        target_modules=["q_proj"],
        base_model_name_or_path=str(planted.folder),
        megatron_core="evil",
    )
    planted.pickled("adapter_model.bin")


def adapter_of_another_kind(planted: Planted) -> None:
    tokenizer(planted)
    planted.change(
        "adapter_config.json",
        peft_type="PROMPT_TUNING",
        task_type="CAUSAL_LM",
        prompt_tuning_init="TEXT",
        prompt_tuning_init_text="a",
        tokenizer_name_or_path=str(planted.folder),
    )


def damaged_gguf(planted: Planted) -> None:
    (planted.folder / "model.gguf").write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + pickle.dumps(Call(planted.canary))
    )


def of_scorer(name: str) -> Callable[[str], Any]:
    return lambda folder: load_scorer(name, checkpoint=folder)


def judge(folder: str) -> Any:
    return load_judge(resolve_model("shapes/vlm"), folder)


def chat(folder: str) -> Any:
    return load_chat_model(folder)


def chat_gguf(folder: str) -> Any:
    return load_chat_model(folder, gguf_file="model.gguf")


CASES = [
    ("shapes/clip", config, of_scorer("clip_d"), REFUSED),
    ("shapes/clip", tokenizer, of_scorer("clip_t"), None),
    ("shapes/clip", image_processor, of_scorer("clip_i"), REFUSED),
    ("shapes/clip", pickled_weights, of_scorer("clip_d"), "cannot be read"),
    ("shapes/clip", pickled_under_another_name, of_scorer("clip_d"), "cannot be read"),
    ("shapes/clip", config, of_scorer("dino_i"), REFUSED),
    ("shapes/clip", image_processor, of_scorer("dino_i"), REFUSED),
    ("shapes/vifi-clip", tokenizer, of_scorer("vifi_clip"), None),
    ("shapes/vifi-clip", pickled_pooling, of_scorer("vifi_clip"), "cannot be read"),
    ("shapes/adiee", config, of_scorer("adiee"), REFUSED),
    ("shapes/adiee", processor, of_scorer("adiee"), REFUSED),
    ("shapes/adiee", pickled_head, of_scorer("adiee"), "cannot be read"),
    ("shapes/adiee", of_another_base, of_scorer("adiee"), REFUSED),
    ("shapes/vlm", config, of_scorer("vlm_judge"), REFUSED),
    ("shapes/vlm", processor, load_vlm, REFUSED),
    ("shapes/vlm", video_processor, load_judge, None),
    ("shapes/vlm", part_of_a_model, load_vlm, REFUSED),
    ("shapes/vlm", pickled_weights, load_judge, "cannot be"),
    ("", adapter, judge, "adapter"),
    ("", adapter_of_another_kind, judge, "expected a LoRA"),
    ("shapes/detector", config, Detector.from_pretrained, REFUSED),
    ("shapes/detector", tokenizer, Detector.from_pretrained, None),
    ("shapes/segmenter", config, Segmenter.from_pretrained, REFUSED),
    ("shapes/segmenter", pickled_weights, Segmenter.from_pretrained, "cannot be read"),
    ("shapes/editor", pipeline_of_its_own, load_editor, REFUSED),
    (
        "shapes/editor",
        pipeline_by_name,
        load_editor,
        "expected one of StableDiffusionInstructPix2PixPipeline",
    ),
    ("shapes/editor", part_of_the_system, load_editor, "got scheduler of os"),
    ("shapes/editor", part_of_the_folder, load_editor, "got unet of evil"),
    ("shapes/editor", part_in_a_library_s_name, load_editor, REFUSED),
    ("shapes/editor", part_that_asks, load_editor, "AutoModel"),
    ("shapes/editor", tokenizer_that_asks, load_editor, "AutoTokenizer"),
    ("shapes/editor", pickled_unet, load_editor, "Unable to load weights"),
    ("shapes/editor", pickled_lora, load_editor, "cannot be read"),
    ("shapes/editor", part_that_asks, load_text_to_image, "AutoModel"),
    ("shapes/vlm", config, chat, REFUSED),
    ("", damaged_gguf, chat_gguf, "model"),
]


@pytest.mark.parametrize(("name", "plant", "load", "message"), CASES)
def test_no_code_of_a_checkpoint_runs(name, plant, load, message, tmp_path, monkeypatch):
    planted = Planted(tmp_path / "model", name)
    plant(planted)
    answers = io.StringIO("y\n" * 50)
    monkeypatch.setattr(sys, "stdin", answers)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.chdir(planted.folder)
    if message is None:  # transformers has such a tokenizer of its own, and takes that
        load(str(planted.folder))
    else:
        with pytest.raises(ValueError, match=message) as error:
            load(str(planted.folder))
        assert "trust_remote_code" not in str(error.value)
        assert len(str(error.value)) < 800
    assert not planted.canary.exists()
    assert answers.tell() == 0, "standard input was read"
