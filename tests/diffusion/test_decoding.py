"""A VAE decodes as many rows as fit, and no denoising step is made twice."""

import pytest
import torch

from rewardedit.diffusion.editors import Editor, SamplingConfig, as_editor
from tests.models import tiny_pipeline

STEPS = 2


def sources(rows: int) -> torch.Tensor:
    return torch.rand(rows, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Watched:
    """An editor whose VAE runs out of memory above a number of rows."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.decoded: list[int] = []  # rows of each try
        self.denoised: list[int] = []
        pipe = tiny_pipeline()
        pipe.set_progress_bar_config(disable=True)
        pipe.vae.decoder.register_forward_hook(self.run_out)
        pipe.unet.register_forward_hook(lambda unet, args, output: self.denoised.append(len(args[0])))
        self.editor: Editor = as_editor(pipe)

    def run_out(self, decoder, args, output):
        self.decoded.append(len(output))
        if len(output) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")

    def edit(self, rows: int = 5) -> torch.Tensor:
        return self.editor(sources(rows), ["make it red"] * rows, settings=SamplingConfig(STEPS))


def test_where_all_rows_fit_they_are_decoded_at_once_as_by_the_pipeline():
    watched = Watched(limit=5)
    edited = watched.edit()
    assert watched.decoded == [5]
    plain = watched.editor.pipe(
        prompt=["make it red"] * 5,
        image=sources(5),
        num_inference_steps=STEPS,
        generator=[torch.Generator().manual_seed(seed) for seed in range(5)],
        output_type="pt",
    )
    torch.testing.assert_close(edited, plain.images.clamp(0, 1), rtol=0, atol=1e-6)


def test_where_memory_runs_out_the_decoding_alone_is_halved_and_stays_so():
    wanted = Watched(limit=5).edit()
    watched = Watched(limit=2)
    torch.testing.assert_close(watched.edit(), wanted, rtol=0, atol=1e-5)
    assert watched.decoded == [5, 2, 2, 1]
    assert watched.denoised == [15] * STEPS
    watched.edit()
    assert watched.decoded[4:] == [2, 2, 1]


def test_a_single_row_that_does_not_fit_is_an_error_and_the_pipeline_stays_as_it_was():
    watched = Watched(limit=0)
    with pytest.raises(torch.OutOfMemoryError):
        watched.edit()
    assert watched.decoded == [5, 2, 1]
    assert "decode" not in vars(watched.editor.pipe.vae)
