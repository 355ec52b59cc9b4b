"""A denoiser whose calls are replayed edits as the plain one does."""

import pytest
import torch

from rewardedit.diffusion import replaying
from rewardedit.diffusion.editors import Editor, SamplingConfig, as_editor, load_editor
from rewardedit.diffusion.guidance import mask_guidance
from rewardedit.diffusion.replaying import Replay, replay_calls
from tests.models import tiny_pipeline


class Rerun(Replay):
    """Runs a recorded call again, on the tensors that it holds, where a GPU would replay its kernels."""

    calls = 0

    def can_record(self, tensors):
        return True

    def record(self, call):
        output = call()

        class Graph:
            def replay(_):
                self.calls += 1
                output[0].copy_(call()[0])

        return Graph(), output


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


def test_calls_with_gradient_and_many_shapes_run_as_they_are(editor, monkeypatch):
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
    assert replay.calls == 3


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


def test_an_editor_is_loaded_with_graphs_where_asked(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path)
    editor = load_editor(tmp_path, device="cpu", graphs=True)
    assert editor.pipe.unet.forward is editor.replay
    assert load_editor(tmp_path, device="cpu").replay is None
    with pytest.raises(ValueError, match="graphs do not apply to a loaded pipeline"):
        load_editor(editor.pipe, graphs=True)
