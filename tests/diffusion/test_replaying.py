"""A denoiser whose calls are replayed edits as the plain one does."""

from contextlib import contextmanager

import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor
from peft import LoraConfig
from torch._subclasses.fake_tensor import FakeTensorMode

from rewardedit.batch_sizes import HELD, BatchSize, in_batches
from rewardedit.diffusion import replaying
from rewardedit.diffusion.editors import Editor, SamplingConfig, as_editor, load_editor
from rewardedit.diffusion.guidance import mask_guidance
from rewardedit.diffusion.replaying import Replay, replay_calls
from tests.models import tiny_pipeline
from tests.reruns import Frozen, Rerun


@pytest.fixture(autouse=True)
def nothing_held_afterwards():
    yield
    HELD.clear()


@pytest.fixture
def editor(monkeypatch):
    monkeypatch.setattr(replaying, "Replay", Rerun)
    return as_editor(tiny_pipeline())


def edit(editor: Editor, b: int = 1, h: int = 32, w: int = 32) -> torch.Tensor:
    source = torch.rand(b, 3, h, w, generator=torch.Generator().manual_seed(0))
    return editor(source, ["make it red"] * b, settings=SamplingConfig(3))


def test_replayed_steps_edit_the_same(editor):
    sizes = ((1, 32, 32), (2, 32, 64))
    plain = [edit(editor, *size) for size in sizes]
    replay = replay_calls(editor.pipe.unet)
    for size, wanted in zip(sizes, plain, strict=True):
        assert torch.equal(edit(editor, *size), wanted)
        assert torch.equal(edit(editor, *size), wanted)
    assert replay.calls == 12
    assert str(replay).startswith("graphs: 2 recorded in ")


def test_a_mask_guides_replayed_steps_too(editor):
    plain = edit(editor)
    with mask_guidance(editor.pipe, torch.zeros(1, 1, 32, 32)):
        masked = edit(editor)
    replay_calls(editor.pipe.unet)
    with mask_guidance(editor.pipe, torch.zeros(1, 1, 32, 32)):
        assert torch.equal(edit(editor), masked)
    assert torch.equal(edit(editor), plain)


def test_weights_that_change_in_place_count(editor):
    replay = replay_calls(editor.pipe.unet)
    before = edit(editor)
    with torch.no_grad():
        editor.pipe.unet.conv_out.weight.mul_(2)
    after = edit(editor)
    assert not torch.equal(after, before)
    assert torch.equal(after, edit(as_plain(editor, replay)))


def as_plain(editor: Editor, replay: Replay) -> Editor:
    editor.pipe.unet.forward = replay.forward
    return editor


def test_gradients_are_not_recorded_and_recordings_are_bounded(editor, monkeypatch):
    monkeypatch.setattr(replaying, "MOST", 1)
    unet = editor.pipe.unet
    replay = replay_calls(unet)
    sample = torch.randn(1, unet.config.in_channels, 8, 8, requires_grad=True)
    words = torch.randn(1, 77, unet.config.cross_attention_dim)
    unet(sample, 5, words).sample.sum().backward()
    assert sample.grad is not None
    assert not replay.recorded
    edit(editor)
    edit(editor, 2)
    assert len(replay.recorded) == 1
    assert replay.calls == 6
    assert str(replay).endswith(" s; 1 calls ran as they are")


def test_where_nothing_can_be_recorded_one_warning_says_so(editor, monkeypatch):
    plain = edit(editor)
    replay = replay_calls(editor.pipe.unet)

    def fail(call):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(replay, "record", fail)
    with pytest.warns(UserWarning, match="nothing was recorded") as warned:
        assert torch.equal(edit(editor), plain)
    assert sum("nothing was recorded" in str(w.message) for w in warned) == 1
    assert str(replay) == "graphs: not recorded (operation not permitted when stream is capturing)"


def test_on_a_cpu_calls_run_as_they_are():
    editor = as_editor(tiny_pipeline())
    plain = edit(editor)
    replay = replay_calls(editor.pipe.unet)
    assert torch.equal(edit(editor), plain)
    assert not replay.recorded
    assert str(replay) == "graphs: not recorded (no GPU)"


def test_an_editor_is_loaded_with_graphs_where_asked(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path)
    editor = load_editor(tmp_path, device="cpu", graphs=True)
    assert editor.pipe.unet.forward is editor.replay
    assert load_editor(tmp_path, device="cpu").replay is None
    with pytest.raises(ValueError, match="graphs, quantize do not apply to a loaded pipeline"):
        load_editor(editor.pipe, graphs=True)


SMALL, LARGE, WIDE = (torch.ones(side) for side in ((1,), (8,), (2, 2)))


class Line(torch.nn.Module):
    """A denoiser of one weight, from which a child was taken out."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.register_module("adapter", None)

    def forward(self, rows):
        return [rows * self.weight]


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setattr(replaying, "Replay", Rerun)
    return Line()


@torch.no_grad()
def test_the_least_recently_used_recording_goes_first(line, monkeypatch):
    monkeypatch.setattr(replaying, "MOST", 2)
    replay = replay_calls(line)
    for rows in (SMALL, LARGE, SMALL, WIDE):
        line(rows)
    shapes = [tuple(recording.inputs[0].shape) for recording in replay.recorded.values()]
    assert shapes == [(1,), (2, 2)]
    assert replay.made == 3


def test_a_change_of_the_denoiser_drops_its_recordings(monkeypatch):
    monkeypatch.setattr(replaying, "Replay", Frozen)
    editor = as_editor(tiny_pipeline())
    pipe, unet = editor.pipe, editor.pipe.unet
    replay = replay_calls(unet)

    def adapt():
        config = LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
        unet.add_adapter(config, "one")

    changes = (
        adapt,
        lambda: pipe.set_adapters("one", 0.5),
        pipe.disable_lora,
        lambda: pipe.to(torch.float64).to(torch.float32),
        lambda: unet.set_attn_processor(AttnProcessor()),
    )
    sample = torch.randn(1, unet.config.in_channels, 8, 8)
    words = torch.randn(1, 77, unet.config.cross_attention_dim)
    with torch.no_grad():
        for change in changes:
            unet(sample, 5, words)
            unet(sample, 5, words)
            made = replay.made
            change()
            found = unet(sample, 5, words).sample
            assert replay.made == made + 1
            assert torch.equal(found, replay.forward(sample, 5, words).sample)


def test_inference_mode_and_no_grad_share_a_recording(line):
    replay = replay_calls(line)
    with torch.inference_mode():
        line(SMALL)
    with torch.no_grad():
        assert torch.equal(line(2 * SMALL)[0], 2 * SMALL)
    assert replay.made == 1


@torch.no_grad()
def test_the_gpu_of_its_tensors_records_a_call(line, monkeypatch):
    """Kernels that run on another GPU than the current one are not recorded, and torch says nothing."""
    current = []
    recorded_on = []

    @contextmanager
    def use(device: torch.device):
        current.append(str(device))
        yield
        current.pop()

    replay = replay_calls(line)
    monkeypatch.setattr(torch.cuda, "device", use)
    monkeypatch.setattr(replay, "record", lambda call: (recorded_on.extend(current), call()))
    with FakeTensorMode(allow_non_fake_inputs=True):
        replay._record([rows := torch.ones(1, device="cuda:1")], (rows,), {})
    assert recorded_on == ["cuda:1"]
    assert current == []


@torch.no_grad()
def test_a_recording_without_memory_runs_as_it_is(line, monkeypatch):
    replay = replay_calls(line)
    record = replay.record

    def fail(call):
        raise torch.OutOfMemoryError

    line(SMALL)
    monkeypatch.setattr(replay, "record", fail)
    assert torch.equal(line(LARGE)[0], LARGE)
    assert not replay.recorded, "recordings give their memory back"
    line(LARGE)
    monkeypatch.setattr(replay, "record", record)
    line(LARGE)
    assert not replay.recorded, "it did not fit alone either"
    line(SMALL)
    assert replay.made == 2
    assert replay.as_they_are == 3
    assert replay.failure is None


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 4])
def test_where_memory_runs_out_recordings_go_first(line, rows):
    replay = replay_calls(line)
    line(SMALL)
    size = BatchSize(4)

    def decode(part):
        if replay.recorded:
            raise torch.OutOfMemoryError
        return part

    assert list(in_batches(range(rows), size, decode)) == [range(rows)]
    assert size.rows == 4
    with pytest.raises(torch.OutOfMemoryError):
        list(in_batches([0], size, lambda part: line(SMALL) and decode(part)))
