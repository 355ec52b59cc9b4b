"""Fine-tuning an editor on the InstructPix2Pix objective, shared by all methods that train an editor.

Each method has its own loop in its own file; see `rewardedit.training.loop`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from diffusers.optimization import get_scheduler
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit import devices
from rewardedit.diffusion.attention import set_attention
from rewardedit.diffusion.compiling import compile_blocks
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.families import Conditioning
from rewardedit.diffusion.noising import conditioning_dropout
from rewardedit.diffusion.replaying import replay_calls
from rewardedit.diffusion.saving import save_editor
from rewardedit.models.half_weights import HalfWeights
from rewardedit.processes import print_on_main, processes
from rewardedit.training.latents import LatentCache
from rewardedit.training.loop import TrainLoop, batch_rows, make_accelerator, step_generator
from rewardedit.training.monitor import Monitor
from rewardedit.training.offloading import OffloadedTextEncoders
from rewardedit.training.prefetch import Prefetcher
from rewardedit.training.previews import save_previews
from rewardedit.training.prompt_cache import TextCache
from rewardedit.training.trackers import log_images, without_images
from rewardedit.training.trainable import (
    RewardLabels,
    TrainConfig,
    autocast_type,
    frozen_parts,
    load_base,
    make_optimizer,
    make_trainable,
)


@dataclass
class MicroBatch:
    """Rows that one process passes through the editor at a time, and random numbers of the diffusion loss."""

    rows: Int[Tensor, " b"]  # indices in the cache
    batch_positions: Int[Tensor, " b"]  # their places in the whole update's batch, over all processes
    noise: Float[Tensor, "b c h w"]
    times: Int[Tensor, " b"]
    inputs: "Inputs"
    ids: list[str]


@dataclass
class Inputs:
    """Inputs of the diffusion loss; the conditioning of some rows is dropped."""

    edited: Float[Tensor, "b c h w"]  # scaled latents
    source: Float[Tensor, "b c _ _"]  # as the denoiser is conditioned on them
    texts: dict[str, Tensor]  # encoded prompts, by the names of `EditFamily.encode_texts`
    label: Int[Tensor, " b"]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        """The inputs with each tensor changed."""
        texts = {name: change(value) for name, value in self.texts.items()}
        return Inputs(change(self.edited), change(self.source), texts, change(self.label))

    def to(self, device: torch.device) -> "Inputs":
        """Copies the inputs to another device; from pinned memory, in parallel to its computations."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))


class Finetuning:
    """Fine-tunes an editor on cached rows and their labels; the result is a pipeline or a LoRA."""

    def __init__(
        self,
        config: TrainConfig,
        base: str,
        cache: LatentCache,
        labels: RewardLabels,
        folder: Path,
        resume: bool = False,
        passes_per_row: int = 1,
    ) -> None:
        """Loads the base and prepares its trained modules.
        With `resume`, `loop.steps()` continues from the newest checkpoint.

        Args:
            passes_per_row: backward passes that each row takes in an update, such as one for each of
                several time steps.

        Raises:
            ValueError: if no row has a label, or `memory` is "auto", which `savers.fit_training` replaces.
        """
        if config.memory == "auto":
            raise ValueError(
                "train.memory: expected given for this trainer, got auto; set train.micro_batch_size and "
                "train.gradient_checkpointing"
            )
        self.config = config
        self.base = base
        self.cache = cache
        self.labels = labels
        self.folder = folder
        usable = [label is not None and i not in cache.unreadable for i, label in enumerate(labels.label)]
        self.labelled_rows = torch.tensor(usable).nonzero()[:, 0]
        if not len(self.labelled_rows):
            raise ValueError(
                "no row has a label to train on; look at the scores' reasons in the relabelled shards"
            )

        # New weights, of a LoRA or an embedding, are drawn from this seed, the same on every process.
        set_seed(config.seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.micro_batch_size, passes = config.micro_batches(processes().num_processes)
        passes *= passes_per_row
        self.accelerator = make_accelerator(folder, config.mixed_precision, passes, config.tracker)
        if config.validate_every and (names := without_images(self.accelerator)):
            print_on_main(
                f"tracker: {', '.join(names)} takes no images from accelerate; previews are in "
                f"{folder / 'validation'}"
            )

        self.editor = load_base(base, self.accelerator.device, config.quantize)
        self.modules = make_trainable(self.editor, config, labels)
        dtype = autocast_type(devices.precision_here(config.mixed_precision))
        print_on_main(str(set_attention(self.modules.unet, config.attention, dtype, cache.shape[-1])))
        # In place: rollouts run the same blocks with the weights of the moment.
        self.compilation = compile_blocks(self.modules.unet) if config.compile else None
        # Below the autocast that accelerate puts around the calls.
        self.replay = replay_calls(self.modules.unet, enabled=False) if config.graphs else None

        optimizer = make_optimizer(config, self.modules)
        lr_scheduler = get_scheduler(
            config.lr_scheduler,
            optimizer,
            num_warmup_steps=config.lr_warmup_steps,
            num_training_steps=config.max_steps,
        )
        self.unet, optimizer = self.accelerator.prepare(self.modules.unet, optimizer)
        self.embedding = self._prepare(self.modules.embedding)
        self.text_encoder = self._prepare(self.modules.text_encoder)
        wrapped = [module for module in (self.unet, self.embedding, self.text_encoder) if module is not None]
        self.loop = TrainLoop(
            config,
            self.accelerator,
            optimizer,
            lr_scheduler,
            self.modules.trained,
            folder,
            resume,
            label="fine-tuning",
            wrapped=wrapped,
        )
        self.scheduler = self.editor.family.training_scheduler(self.editor.pipe.scheduler)
        self.texts: TextCache = cache.texts(self.editor, labels)
        # Prompts are encoded by now.
        self.half = HalfWeights(frozen_parts(self.editor.pipe)) if config.has_half_weights else None
        self.offloaded: OffloadedTextEncoders | None = None
        if config.offload_text_encoder:
            self.offloaded = OffloadedTextEncoders(self.editor.pipe, self.accelerator.device)
        self._rows_of = Prefetcher(self._read, config.max_steps)

    def _prepare(self, module: Any) -> Any:
        return None if module is None else self.accelerator.prepare(module)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """This process's share of a step's rows, split into micro-batches; meanwhile those of the next step
        are read from disk.
        """
        return self._rows_of(step)

    def _read(self, step: int) -> list[MicroBatch]:
        """The micro-batches of a step.

        Every process draws the same noise, times and dropout for the whole batch, so that neither the number
        of processes nor the micro-batch size changes what a row is trained on.
        """
        config = self.config
        drawn = batch_rows(len(self.labelled_rows), config.batch_size, step, config.seed)
        rows = self.labelled_rows[drawn]
        generator = step_generator(config.seed, step)
        noise = torch.randn(len(rows), *self.cache.shape, generator=generator)
        times = torch.randint(self.scheduler.config.num_train_timesteps, (len(rows),), generator=generator)
        dropout = torch.rand(len(rows), generator=generator)

        micro_batches = []
        local = torch.arange(len(rows))[processes().process_index :: processes().num_processes]
        for slots in local.split(self.micro_batch_size):
            inputs = self._inputs(rows[slots], dropout[slots])
            ids = [self.cache.ids[i] for i in rows[slots].tolist()]
            drawn_for = self._pinned(noise[slots]), self._pinned(times[slots])
            micro_batches.append(MicroBatch(rows[slots], slots, *drawn_for, inputs, ids))
        return micro_batches

    def diffusion_loss(self, micro: MicroBatch) -> Float[Tensor, ""]:
        """InstructPix2Pix's objective on the data set's own pairs, mean over the rows."""
        device = self.accelerator.device
        inputs = micro.inputs.to(device)
        losses = self.editor.family.loss(
            self.unet,
            self.scheduler,
            inputs.edited,
            micro.noise.to(device, non_blocking=True),
            micro.times.to(device, non_blocking=True),
            self.conditioning(inputs),
            min_snr=self.config.min_snr,
        )
        return losses.mean()

    def conditioning(self, inputs: Inputs) -> Conditioning:
        """The conditioning of inputs on the device that trains."""
        texts = dict(inputs.texts)
        tokens = texts.pop("tokens", None)
        if self.text_encoder is not None:
            texts["embeds"] = self.text_encoder(tokens)[0]
        if self.embedding is not None:
            texts["embeds"] = self.embedding(texts["embeds"], inputs.label)
        return Conditioning(source=inputs.source, **texts)

    def _inputs(self, rows: Int[Tensor, " b"], dropout: Float[Tensor, " b"]) -> Inputs:
        """Inputs of rows; `dropout`, uniform in [0, 1), decides which conditioning is dropped."""
        no_text, no_image = conditioning_dropout(dropout, self.config.conditioning_dropout)
        edited, source = self.cache.latents(rows)
        if self.config.null_text_target == "source":
            becomes_source = (no_text & ~no_image)[:, None, None, None]
            edited = torch.where(becomes_source, source * self.cache.scaling, edited)
        source[no_image] = 0
        return Inputs(edited, source, *self.texts.take(rows, no_text)).map(self._pinned)

    def _pinned(self, tensor: Tensor) -> Tensor:
        """The tensor in memory from which a GPU copies while it computes; as it is without one."""
        return tensor.pin_memory() if self.accelerator.device.type == "cuda" else tensor

    def current_editor(self) -> Editor:
        """The editor with its current weights; it samples within `sampling`."""
        pipe, settings, bits = self.editor.pipe, self.editor.settings, self.editor.quantize
        prompt = self.labels.prompt
        return Editor(pipe, settings, prompt, self.modules.embedding, quantize=bits, half=self.half)

    def rollouts(self) -> AbstractContextManager[None]:
        """Context of rollouts, whose calls without gradient are replayed with `train.graphs`. Recordings stay
        from one rollout to the next: the same adapters are at work, and weights change in place.
        """
        return nullcontext() if self.replay is None else self.replay.within()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Context within which the editor can encode texts and sample."""
        with (
            nullcontext() if self.offloaded is None else self.offloaded.in_use(),
            nullcontext() if self.half is None else self.loop.autocast(),
        ):
            yield

    def check(self, monitor: Monitor, step: int) -> bool:
        """Lets the monitor evaluate the current weights; returns True to stop training."""
        with self.sampling():
            return monitor.check(self.current_editor(), step)

    def is_validation_step(self) -> bool:
        """True if previews are due after the current step."""
        every = self.config.validate_every
        return bool(every) and (self.loop.step + 1) % every == 0

    def save_previews(self) -> None:
        """Saves edits of a few rows for inspection; with the averaged weights if called inside
        `loop.ema_weights()`.
        """
        step = self.loop.step + 1
        folder = self.folder / "validation" / f"step-{step:06d}"
        rows, data = self.cache.rows, self.cache.data
        count = self.config.validation_rows
        save_previews(self.current_editor(), rows, data, count, folder, self.sampling())
        if self.accelerator.log_with:
            processes().wait_for_everyone()  # each process has written its share
            if processes().is_main_process:
                log_images(self.accelerator, sorted(folder.glob("*.png")), step)

    def save(self) -> Path:
        """Saves the result with the averaged weights and returns its folder: `pipeline/`, which stock
        diffusers loads, or `lora/`.
        """
        self.loop.finish()
        self._rows_of.close()
        for record in (self.compilation, self.replay):
            if record is not None:
                print_on_main(str(record))
        out = self.folder / self.config.result
        if self.accelerator.is_main_process:
            with nullcontext() if self.offloaded is None else self.offloaded.registered():
                save_editor(self.current_editor(), out, base=self.base if self.config.lora_rank else None)
        return out
