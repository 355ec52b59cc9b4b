"""One fine-tuning: an editor, cached rows and their labels in, a pipeline or LoRA out.

The loop of reward conditioning and, with `feedback`, of reward feedback learning.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import set_seed
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from jaxtyping import Float, Int
from torch import Tensor, nn

from rewardedit.attention import set_attention
from rewardedit.diffusion.editors import Editor, locate, save_editor
from rewardedit.diffusion.training import conditioning_dropout, diffusion_loss, noising
from rewardedit.trainers import _run
from rewardedit.trainers._cache import LatentCache, TextCache
from rewardedit.trainers._models import Labels, Models, Train, autocast_type, load_base, make_optimizer, make_trainable
from rewardedit.trainers._preview import save_previews


class Feedback(Protocol):
    """What reward feedback learning adds to a step."""

    pairs: float  # weight of the diffusion loss on the data's own pairs

    def loss(self, unet: Any, rows: Int[Tensor, " b"], step: int, places: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        """The reward's part of the loss of these rows; `places` are theirs in the global batch, and key their noise."""
        ...

    def log(self) -> dict[str, float]:
        """Means since the last call, for the log."""
        ...

    def watch(self, editor: Editor, step: int) -> bool:
        """Looks at the editor as it is; True: stop."""
        ...


def finetune(
    config: Train,
    base: str,
    cache: LatentCache,
    labels: Labels,
    folder: Path,
    resume: bool = False,
    feedback: Callable[[Editor], Feedback] | None = None,
) -> Path:
    """Fine-tunes `base` on cached rows and their labels, and on what `feedback` says of the editor that it is given.

    Returns:
        The folder of the result: `pipeline/`, which stock diffusers loads, or `lora/`.

    Raises:
        ValueError: where no row has a label.
        TrainingStopped: where the loss is not a number.
    """
    kept = [i for i, label in enumerate(labels.label) if label is not None]
    if not kept:
        raise ValueError("no row has a label to train on; look at the scores' reasons in the relabelled shards")
    set_seed(config.seed)
    folder.mkdir(parents=True, exist_ok=True)
    micro_batch, passes = config.micro_batches(_run.processes().num_processes)
    accelerator = _run.make_accelerator(folder, config.precision, passes, config.tracker)
    editor = load_base(base, accelerator.device)
    models = make_trainable(editor, config, labels)
    choice = set_attention(models.unet, config.attention, autocast_type(config.precision), cache.shape[-1])
    accelerator.print(choice)

    optimizer = make_optimizer(config, models)
    schedule = get_scheduler(config.schedule, optimizer, num_warmup_steps=config.warmup, num_training_steps=config.steps)
    unet, optimizer = accelerator.prepare(models.unet, optimizer)
    embedding, text_encoder = (None if m is None else accelerator.prepare(m) for m in (models.embedding, models.text_encoder))
    wrapped = [m for m in (unet, embedding, text_encoder) if m is not None]
    averages = (
        EMAModel(models.trained, decay=config.ema, use_ema_warmup=True, inv_gamma=10.0, power=1.0) if config.ema else None
    )
    told = None if feedback is None else feedback(editor)
    accelerator.register_for_checkpointing(*(o for o in (schedule, averages) if o is not None))
    first = _run.resume(accelerator, folder) if resume else 0
    if averages is not None:
        averages.to(accelerator.device)

    scheduler, texts = noising(editor.pipe.scheduler), cache.texts(editor, labels)
    recent: list[float] = []
    for step, bar in _run.steps(first, config.steps, config.batch, accelerator, "fine-tuning"):
        rows = torch.tensor(kept)[_run.batch_rows(len(kept), config.batch, step, config.seed)]
        generator = _run.step_generator(config.seed, step)
        noise = torch.randn(len(rows), *cache.shape, generator=generator)
        times = draw_times(len(rows), scheduler.config.num_train_timesteps, config.last_step, generator)
        dropped = torch.rand(len(rows), generator=generator)
        mine = torch.arange(len(rows))[accelerator.process_index :: accelerator.num_processes].split(micro_batch)
        total = 0.0
        for part in mine:
            with accelerator.accumulate(*wrapped):
                edited, source, (prompts, tokens, label) = _inputs(config, cache, texts, rows[part], dropped[part])
                tensors = [t.to(accelerator.device) for t in (edited, source, prompts, noise[part], times[part])]
                with accelerator.autocast():
                    if text_encoder is not None:
                        tensors[2] = text_encoder(tokens.to(accelerator.device))[0]
                    if embedding is not None:
                        tensors[2] = embedding(tensors[2], label.to(accelerator.device))
                    loss = diffusion_loss(unet, scheduler, *tensors, min_snr=config.min_snr).mean()
                    if told is not None:
                        loss = told.pairs * loss + told.loss(unet, rows[part], step, part)
                _run.require_finite(loss.detach(), step, [cache.ids[i] for i in rows[part].tolist()])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(models.trained, config.clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                total += loss.item() / len(mine)
        schedule.step()
        if averages is not None:
            averages.step(models.trained)
        total = accelerator.reduce(torch.tensor(total, device=accelerator.device), "mean").item()
        recent.append(total)
        bar.set_postfix_str(f"loss {total:.4f}", refresh=False)
        done = step + 1
        if done % config.log_every == 0 or done == config.steps:
            more = {} if told is None else told.log()
            _run.log(accelerator, folder, done, {"loss": sum(recent) / len(recent), "lr": schedule.get_last_lr()[0], **more})
            recent = []
        if done % config.checkpoint_every == 0 or done == config.steps:
            _run.save_checkpoint(accelerator, folder, done)
        due = bool(config.validate_every) and done % config.validate_every == 0
        if due or (told is not None and done == config.steps):
            with _averaged(averages, models.trained):
                now = _result(editor, labels, models)
                if due:
                    previews = folder / "validation" / f"step-{done:06d}"
                    save_previews(now, cache.rows, cache.data, config.validation_rows, previews)
                if told is not None and told.watch(now, done):
                    break

    out = folder / ("lora" if config.lora_rank else "pipeline")
    if averages is not None:
        averages.copy_to(models.trained)
    if accelerator.is_main_process:
        save_editor(_result(editor, labels, models), out, base=locate(base) if config.lora_rank else None)
    _run.finish(accelerator)
    return out


def _inputs(
    config: Train, cache: LatentCache, texts: TextCache, rows: Int[Tensor, " b"], drawn: Float[Tensor, " b"]
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Latents of edits and sources, and the prompts as `TextCache.take` has them, of which some are dropped, as drawn."""
    no_text, no_image = conditioning_dropout(drawn, config.dropout)
    edited, source = cache.latents(rows)
    if config.unasked == "source":
        edited = torch.where((no_text & ~no_image)[:, None, None, None], source * cache.scaling, edited)
    source[no_image] = 0
    return edited, source, texts.take(rows, no_text)


def draw_times(n: int, steps: int, last: float, generator: torch.Generator) -> Tensor:
    """Time steps (n,), uniform in [0, steps) but for a share `last` at steps − 1."""
    times = torch.randint(steps, (n,), generator=generator)
    if last:
        times[torch.rand(n, generator=generator) < last] = steps - 1
    return times


def _result(editor: Editor, labels: Labels, models: Models) -> Editor:
    return Editor(editor.pipe, editor.settings, labels.prompt, models.embedding)


class _averaged:
    """While it is open, the trained parameters hold their moving averages."""

    def __init__(self, averages: EMAModel | None, parameters: list[nn.Parameter]) -> None:
        self.averages, self.parameters = averages, parameters

    def __enter__(self) -> None:
        if self.averages is not None:
            self.averages.store(self.parameters)
            self.averages.copy_to(self.parameters)

    def __exit__(self, *_: object) -> None:
        if self.averages is not None:
            self.averages.restore(self.parameters)
