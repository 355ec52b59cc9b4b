"""Every command and trainer on a device that is not the CPU (tests/standin.py):
nothing may be left on the CPU beside it.
"""

import json

import pytest
import torch
from PIL import Image
from skimage import data
from torch import nn
from torch.overrides import TorchFunctionMode

from rewardedit import (
    EditBatch,
    best_of_n,
    editing,
    load_editor,
    load_scorer,
    mask_guidance,
    reward_guidance,
    two_round_edit,
)
from rewardedit.cli import main
from rewardedit.cli.bench_editors import open_model
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.synthesis import methods
from rewardedit.training import loop
from rewardedit.training.checkpoints import checkpoints
from rewardedit.training.fit import SmallTrainConfig, fit
from tests import standin
from tests.editors import ready, small_qwen_area, tiny_klein, tiny_kontext, tiny_qwen
from tests.models import tiny_pipeline

CPU = torch.device("cpu")
WORLD = ("--world", "shapes")
SUM = "relabel.scorer={clip_d: {weight: 0.7, checkpoint: shapes/clip}, ssim: {weight: 0.3}}"


SHORT = [
    "data.limit=14",
    "data.size=32",
    "train.max_steps=2",
    "train.batch_size=2",
    "train.lr_warmup_steps=1",
    "train.tracker=none",
]
EVALUATE = [
    "evaluate.n=2",
    "evaluate.val_n=2",
    "evaluate.num_inference_steps=[1]",
    "evaluate.guidance_scale=[1.4]",
]
REFUSED = {
    "a sum": lambda here, there: here + there,
    "a sum, the other way": lambda here, there: there + here,
    "a matrix product": lambda here, there: here @ there,
    "a convolution": lambda here, there: nn.functional.conv2d(there[None, None], here[None, None]),
    "joined": lambda here, there: torch.cat([here, there]),
    "numbers joined": lambda here, there: torch.stack([here.sum(), there.sum()]),
    "chosen": lambda here, there: torch.where(there > 0, here, here),
    "looked up": lambda here, there: nn.functional.embedding(torch.tensor([1]), here),
    "rows of the CPU by an index of the device": lambda here, there: there[here[0].long()],
    "a column written": lambda here, there: here.clone().index_copy_(0, torch.tensor([0]), here[:1]),
    "an image handed to numpy": lambda here, there: here.numpy(),
    "drawn by a CPU generator": lambda here, there: torch.randn(
        3, device=here.device, generator=torch.Generator()
    ),
}
ALLOWED = {
    "a number": lambda here, there: here * torch.tensor(2.0) + torch.tensor(1.0),
    "rows by an index of the CPU": lambda here, there: here[torch.tensor([1, 0, 2])],
    "rows by a mask of the CPU": lambda here, there: here[there[:, 0] > 1],
    "copied over": lambda here, there: here.copy_(there),
    "copied back": lambda here, there: there.copy_(here).to(here.device),
}


@pytest.fixture
def photo(tmp_path) -> str:
    path = tmp_path / "cat.png"
    Image.fromarray(data.chelsea()).resize((32, 32)).save(path)
    return str(path)


@pytest.mark.parametrize("name", REFUSED)
def test_the_stand_in_refuses_what_cuda_refuses(name, standin_device):
    there = torch.arange(9.0).reshape(3, 3) % 3
    with pytest.raises((RuntimeError, TypeError), match=r"device"):
        REFUSED[name](there.to(standin_device), there.clone())


@pytest.mark.parametrize("name", ALLOWED)
def test_the_stand_in_allows_what_cuda_allows(name, standin_device):
    there = torch.arange(9.0).reshape(3, 3)
    found = ALLOWED[name](there.to(standin_device), there.clone())
    assert found.device.type == standin_device
    assert torch.equal(found.cpu(), ALLOWED[name](there.clone(), there.clone()))


@pytest.mark.parametrize(
    ("marks", "is_wanted"), [("", True), ("not slow", True), ("not gpu", True), ("gpu and not slow", False)]
)
def test_beside_cuda_there_is_no_stand_in(marks, is_wanted):
    assert standin.is_wanted(marks) == is_wanted


def test_the_stand_in_computes_what_the_cpu_computes(standin_device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(288, 4))
    images = torch.randn(2, 3, 8, 8)
    grads = {}
    parameters = list(net.parameters())
    for device in ("cpu", standin_device):
        net.to(device).zero_grad()
        assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True))
        out = net(images.to(device)) * 1.0
        out[:, 1:3].mul_(2.0)  # a view that is written to: its gradient goes by storage and offset
        out.square().sum().backward()
        grads[device] = [p.grad.cpu().clone() for p in parameters]
    for a, b in zip(*grads.values(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    with torch.autocast(standin_device, torch.bfloat16):
        assert net(images.to(standin_device)).dtype == torch.bfloat16
        assert out.softmax(-1).dtype == torch.float32


@pytest.mark.world
def test_the_small_models_train(standin_device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["train.max_steps=2", "train.batch_size=10", "train.lr_warmup_steps=1", "samples=14"]
    assert main(["train", "shapes/autoencoder", *short, "channels=[8, 8, 16]", "evaluate_n=7"]) == 0
    assert main(["train", "shapes/clip", *short, "width=32", "text_layers=1", "vision_layers=1"]) == 0
    assert main(["train", "shapes/text-encoder", *short, "clip=runs/shapes-clip/clip"]) == 0
    # Without Muon, which has its own test below, and whose steps are many operations.
    editor = ["largest_weight=5", "sources=7", "draws=2", *short[:3], "train.muon_lr=null"]
    small = ["channels=[32, 32]", "evaluate_n=2", "--out", "runs/shapes-editor"]
    assert main(["train", "shapes/editor/phase-1", *editor, *small]) == 0
    words = ["editor=runs/shapes-editor", "channels=[16, 32]", "train.muon_lr=null"]
    assert main(["train", "shapes/text-to-image", *short, *words]) == 0


def test_a_scorer_trains(standin_device, tmp_path):
    words = [
        "data.limit=14",
        "train.max_steps=2",
        "train.batch_size=2",
        "train.lr_warmup_steps=1",
        "held_out.limit=14",
        "size=32",
    ]
    assert main(["train", "shapes/vifi-clip", *words, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["retrieval"]


@pytest.mark.slow
def test_reward_conditioning_goes_on_where_it_stopped_and_is_compared(
    standin_device, tiny_editor, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    base = [f"base={tiny_editor}", "variants=[words, learned_embedding]"]
    words = [
        "train",
        "shapes/reward-conditioned",
        *SHORT,
        *EVALUATE,
        *base,
        SUM,
        "train.text_encoder_lr=1e-4",
        "train.ema=0.9",
    ]
    words += [
        "train.checkpoint_every=1",
        "train.validate_every=2",
        "train.validation_rows=1",
        "--out",
        str(out),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "require_finite", interrupted_at(1))
        assert main(words) == 130
    assert len(checkpoints(out)) == 1
    assert main([*words, "--resume"]) == 0
    assert list(out.glob("validation/**/*.png"))  # a preview that fails ends no run
    assert {"words_five", "learned_embedding_five"} <= set(
        json.loads((out / "metrics.json").read_text())["oracle"]
    )


def test_reward_feedback_learning_with_watch_and_sweep(standin_device, tiny_editor, tmp_path):
    out = tmp_path / "run"
    words = [
        *SHORT,
        *EVALUATE,
        f"base={tiny_editor}",
        "variants=[refl]",
        "train.validate_every=2",
        "reward.num_inference_steps=[2]",
    ]
    words += [
        "reward.stop_before_end=[0, 1]",
        "monitor.n=2",
        "monitor.num_inference_steps=1",
        "train.validation_rows=1",
        "reward.scorer={clip_d: {checkpoint: shapes/clip}}",
        "reward.gradient_checkpointing=[vae, scorer]",
        "train.lora_rank=2",
        "reward.reference_weight=0.1",
    ]
    assert main(["train", "shapes/refl", *words, "--out", str(out)]) == 0
    assert len(json.loads((out / "monitor.json").read_text())["sweep"]) == 2


def test_rows_are_labelled(standin_device, tmp_path):
    assert main(["relabel", "data.name=shapes", "data.limit=14", SUM, "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ([], "float16"),
        (["--dtype", "bfloat16"], "bfloat16"),
        (["--best-of", "2", "--scorer", "clip_d:0.7,l1:0.3", "--mask", "auto", *WORLD], "float16"),
    ],
)
def test_a_picture_is_edited_in_half_precision(
    options, dtype, standin_device, tiny_editor, photo, tmp_path, monkeypatch
):
    editors = []
    run_edits = editing.run_edits
    monkeypatch.setattr(
        editing, "run_edits", lambda editor, *others: editors.append(editor) or run_edits(editor, *others)
    )
    words = [
        "edit",
        photo,
        "make it red",
        "--model",
        tiny_editor,
        "--steps",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*words, *options]) == 0
    assert (editors[0].pipe.device.type, str(editors[0].pipe.dtype)) == (standin_device, f"torch.{dtype}")
    assert json.loads((tmp_path / "out" / "cat.json").read_text())["request"]["dtype"] == dtype


def test_an_edit_is_scored(standin_device, photo, tmp_path, capsys):
    assert (
        main(
            [
                "score",
                photo,
                photo,
                "make it red",
                *WORLD,
                "--scorer",
                "clip_d",
                "l1",
                "ssim",
                "vifi_clip",
                "--json",
            ]
        )
        == 0
    )
    records = json.loads(capsys.readouterr().out)
    assert {record["scorer"] for record in records} == {"clip_d", "l1", "ssim", "vifi_clip"}
    heat = tmp_path / "heat.png"
    assert (
        main(["score", photo, photo, "make it red", *WORLD, "--scorer", "clip_d", "--heatmap", str(heat)])
        == 0
    )
    assert heat.is_file()


# In half precision the same is done, and types may differ beside it.
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float16])
def test_choosing_and_guiding(dtype, standin_device, tiny_editor):
    editor = load_editor(tiny_editor, device=standin_device, dtype=dtype)
    scorer = load_scorer("clip_d", checkpoint="shapes/clip", device=standin_device)
    source = torch.rand(1, 3, 32, 32)
    instruction = ["make it red"]
    settings = SamplingConfig(2)
    assert best_of_n(editor, scorer, source[0], instruction[0], 2, settings=settings).scores.valid.all()
    with mask_guidance(editor.pipe, torch.ones(1, 1, 32, 32).tril()):
        editor(source, instruction, [0], settings=settings)
    assert two_round_edit(editor, source, instruction, settings=settings).edited.shape == source.shape
    there = source.to(standin_device)
    assert two_round_edit(editor, there, instruction, settings=settings).edited.shape == source.shape
    for judge in (
        scorer,
        load_scorer("clip_d", checkpoint="shapes/clip", device="cpu"),
        load_scorer("l1"),
    ):  # there, on the CPU, and without weights
        with reward_guidance(editor.pipe, judge, source, instruction):
            editor(source, instruction, [0], settings=settings)


def test_a_scorer_takes_the_default_device_and_any_batch(standin_device):
    scorer = load_scorer("clip_d", checkpoint="shapes/clip")
    assert {weights.device.type for weights in scorer.parameters()} == {standin_device}
    on_cpu = load_scorer("clip_d", checkpoint="shapes/clip", device="cpu")
    edited = torch.rand(2, 3, 64, 64, requires_grad=True)
    batch = EditBatch(torch.rand(2, 3, 64, 64), ["make it red", "make it blue"], edited)
    scores = scorer(batch)
    assert scores.score.device == scores.valid.device == CPU
    assert scores.score.allclose(on_cpu(batch).score, atol=1e-5)
    scores.score.sum().backward()
    assert edited.grad.abs().sum() > 0
    assert on_cpu(batch.to(standin_device)).score.device.type == standin_device


class Copies(TorchFunctionMode):
    """Counts the images of a size that are copied from the stand-in to main memory."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size
        self.images = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.copy_, torch.Tensor.tolist):
            given = args[1] if func is torch.Tensor.copy_ else args[0]
            there = given.device.type == standin.NAME
            if there and given.shape[-2:] == self.size and getattr(output, "device", CPU).type == "cpu":
                self.images += len(given) if given.ndim == 4 else 1
        return output


def test_candidates_stay_on_the_device_and_the_best_alone_leave_it(standin_device, tiny_editor):
    editor = load_editor(tiny_editor, device=standin_device)
    scorer = load_scorer("clip_d", checkpoint="shapes/clip", device=standin_device)
    with Copies((32, 32)) as copies:
        found = best_of_n(
            editor,
            scorer,
            torch.rand(3, 32, 32),
            "make it red",
            n=4,
            settings=SamplingConfig(1),
            keep=1,
        )
    assert copies.images == 1
    assert found.images.device.type == "cpu"
    with Copies((32, 32)) as copies:
        editor(torch.rand(1, 3, 32, 32), ["make it red"], [0], settings=SamplingConfig(1))
    assert copies.images == 1


@pytest.mark.parametrize("moved", ["editor", "scorer"])
def test_editor_and_scorer_may_be_on_two_devices(moved, standin_device, tiny_editor):
    devices = {"editor": "cpu", "scorer": "cpu", moved: standin_device}
    editor = load_editor(tiny_editor, device=devices["editor"])
    scorer = load_scorer("clip_d", checkpoint="shapes/clip", device=devices["scorer"])
    choice = best_of_n(editor, scorer, torch.rand(3, 32, 32), "make it red", 2, settings=SamplingConfig(1))
    assert choice.scores.valid.all()
    assert choice.images.device == choice.scores.score.device == CPU


@pytest.mark.parametrize("make", [tiny_pipeline, tiny_kontext, tiny_klein, tiny_qwen])
def test_a_pipeline_whose_weights_wait_in_memory_edits(make, standin_device, monkeypatch):
    small_qwen_area(monkeypatch)
    editor = load_editor(make() if make is tiny_pipeline else ready(make()))
    source = torch.rand(1, 3, 64, 64)
    settings = SamplingConfig(2, 4.0)
    expected = editor(source, "make it red", settings=settings)
    editor.pipe.enable_model_cpu_offload(device=standin_device)
    for _ in range(2):
        assert editor(source, "make it red", settings=settings).allclose(expected, atol=1e-3)


def test_flow_editors_are_loaded_in_bfloat16_by_every_command(standin_device, tmp_path, monkeypatch):
    """They overflow in float16, in which Stable Diffusion is loaded."""
    tiny_kontext().save_pretrained(tmp_path)
    loaded: list[Editor] = []

    def load(*names, **options) -> Editor:
        loaded.append(load_editor(*names, **options))
        return loaded[-1]

    monkeypatch.setattr(methods, "load_editor", load)
    methods.load_method(methods.MethodConfig(model=str(tmp_path)))
    editor, config = open_model(str(tmp_path), 0)
    assert [one.pipe.dtype for one in (*loaded, editor)] == [torch.bfloat16] * 2
    assert config.dtype == "bfloat16"


def test_a_masked_text_is_encoded_on_the_device(standin_device):
    pipe = tiny_pipeline()
    pipe.text_encoder.config.use_attention_mask = True
    plain = InstructPix2Pix().encode_prompts(pipe, ["make it red"])
    encoded = InstructPix2Pix().encode_prompts(pipe.to(standin_device), ["make it red"])
    torch.testing.assert_close(encoded.cpu(), plain, rtol=0, atol=1e-4)


def interrupted_at(step: int):
    """A stand-in for `loop.require_finite` that ends the run at a step, as Ctrl-C does."""

    def check(loss: torch.Tensor, now: int, ids: list[str], what: str = "loss") -> None:
        if now == step:
            raise KeyboardInterrupt

    return check


def test_moving_averages_go_on_where_they_stopped(standin_device, tmp_path, monkeypatch):
    def run(folder: str, resume: bool = False) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1))

        def loss(step: int, generator: torch.Generator) -> torch.Tensor:
            return (net(torch.randn(2, 3, 8, 8, generator=generator).to(standin_device)) - 1).square().mean()

        config = SmallTrainConfig(
            max_steps=3, muon_lr=0.02, ema=0.9, mixed_precision="no", checkpoint_every=1
        )
        fit(config, {"net": net}, loss, tmp_path / folder, resume)
        return [p.detach().cpu() for p in net.parameters()]

    with monkeypatch.context() as patch:
        patch.setattr(loop, "require_finite", interrupted_at(2))
        with pytest.raises(KeyboardInterrupt):
            run("broken")
    for a, b in zip(run("broken", resume=True), run("whole"), strict=True):
        assert torch.equal(a, b)
