"""Devices and types of models."""

import pytest
import torch

from rewardedit import EditBatch, devices
from rewardedit.batch import Scores
from rewardedit.prepared import Prepared
from rewardedit.scorers import Scorer
from rewardedit.training.loop import make_accelerator
from rewardedit.training.optimizer import orthogonalised


@pytest.fixture(params=[True, False])
def knows_bf16(request, monkeypatch) -> bool:
    monkeypatch.setattr(devices, "cpu_knows_bf16", lambda: request.param)
    return request.param


def test_bf16_is_taken_where_the_cpu_has_instructions_for_it(knows_bf16):
    expected = torch.bfloat16 if knows_bf16 else torch.float32
    assert devices.inference_dtype("bfloat16") == expected
    assert devices.inference_dtype("float16") == torch.float16
    with devices.autocast("cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == expected
    with devices.autocast("cpu", enabled=False):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert devices.precision_here("bf16") == ("bf16" if knows_bf16 else "no")
    assert devices.precision_here("fp16") == "fp16"


def test_a_training_says_that_it_computes_in_fp32_in_the_place_of_bf16(knows_bf16, tmp_path, capsys):
    accelerator = make_accelerator(tmp_path, "bf16", 1, "none")
    assert accelerator.mixed_precision == ("bf16" if knows_bf16 else "no")
    said = "mixed_precision: this CPU has no units for bf16; computing in fp32\n"
    assert capsys.readouterr().out == ("" if knows_bf16 else said)


def test_muon_computes_in_bf16_where_that_saves_time(knows_bf16):
    matrix = torch.randn(8, 24, generator=torch.Generator().manual_seed(0))
    found = orthogonalised(matrix)
    assert found.dtype == torch.float32
    assert torch.equal(found, found.bfloat16().float()) == knows_bf16
    assert (torch.linalg.svdvals(found) - 0.95).abs().max() < 0.3


def test_tf32_is_taken_on_a_gpu_alone_and_only_within_the_context(monkeypatch):
    def within(device: str) -> str:
        with devices.tf32(device):
            return torch.get_float32_matmul_precision()

    assert within("cuda") == "highest"
    monkeypatch.setenv(devices.TF32, "1")
    assert [within(device) for device in ("cpu", "meta", "cuda")] == ["highest", "highest", "high"]
    assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(ZeroDivisionError), devices.tf32("cuda"):
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == "highest"


def test_scorers_compute_under_the_setting_of_their_device(monkeypatch):
    """A CPU has no TF32, so the device's name alone is another here."""
    monkeypatch.setenv(devices.TF32, "1")
    tf32 = devices.tf32
    monkeypatch.setattr(devices, "tf32", lambda device: tf32({"cpu": "cuda"}[device]))
    seen = []

    class Seeing(Scorer):
        def prepare(self, source, instruction):
            seen.append(torch.get_float32_matmul_precision())
            return Prepared({})

        def score(self, batch, prepared):
            seen.append(torch.get_float32_matmul_precision())
            return Scores.make(batch.edited.flatten(1).mean(1))

    image = torch.rand(2, 3, 8, 8)
    Seeing()(EditBatch(image, ["a", "b"], image))
    assert seen == ["high", "high"]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("has_units", [True, False])
def test_a_gpu_computes_in_bf16_where_it_has_units_for_it(has_units, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: asked.append(how) or has_units)
    assert devices.computes_in_bf16("cuda") == has_units
    assert asked == [{"including_emulation": False}]


def test_language_models_overflow_in_float16(standin_device):
    assert devices.llm_dtype() == torch.bfloat16


def test_another_device_than_the_cpu_computes_in_bf16_whatever_the_cpu_knows(standin_device, monkeypatch):
    monkeypatch.setattr(devices, "cpu_knows_bf16", lambda: False)
    assert devices.inference_dtype("bfloat16") == torch.bfloat16
    assert devices.precision_here("bf16") == "bf16"
    assert not devices.computes_in_bf16("cpu")


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    devices.require_device_there("cpu")
    for name in ("meta", f"cuda:{torch.cuda.device_count()}"):
        with pytest.raises(ValueError, match=rf"one of the {torch.cuda.device_count()} GPUs.*; got {name}"):
            devices.require_device_there(name)
    monkeypatch.setattr(devices, "default_device", lambda: "cuda")
    names = (None, "cuda", "cuda:0", "cuda:1", "cpu")
    assert [devices.is_training_device(name) for name in names] == [True, True, True, False, False]
    assert devices.is_training_device("cuda:1", processes=2), "the second process trains on it"


def test_plans_are_a_gpu_s_on_every_machine():
    assert devices.llm_dtype() == torch.float32
    with devices.planning_for_gpu():
        assert devices.llm_dtype() == torch.bfloat16
        assert devices.llm_dtype("float32") == torch.float32
    assert devices.llm_dtype() == torch.float32
