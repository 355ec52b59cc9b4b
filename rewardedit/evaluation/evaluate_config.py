"""Settings of a comparison of editors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from rewardedit.data import DataConfig
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.scorer_spec import ScorerSpec, resolve_spec, spec_name


@dataclass(frozen=True)
class EvaluateConfig:
    """Held-out rows, and the grid from which each variant takes its best settings on val."""

    n: int = 512  # number of test edits, at most
    val_n: int = 140  # number of edits on which the settings are chosen, at most
    # held-out rows whose source images are not trained on, e.g.
    # {name: magicbrush, path: osunlp/MagicBrush, split: dev}; None: source images held out of the training
    # data, at most a tenth of them. Of a generated world the splits val and test are taken
    data: DataConfig | None = None
    # scorers that judge besides the training's own, best of families that did not train the editor
    scorers: tuple[ScorerSpec, ...] = ()
    # name of the scorer by which settings are chosen; None: a world's exact rating, else the first scorer
    # that did not train the editor and does not prefer an unchanged source, else the training's own
    choose_by: str | None = None
    num_inference_steps: tuple[int, ...] | None = None  # denoising steps; None: as many as the base takes
    # text guidance scales; None: the base's, a seventh less and a seventh more
    guidance_scale: tuple[float, ...] | None = None
    image_guidance_scale: tuple[float, ...] | None = None  # image guidance scales; None: the base's
    seed: int = 0  # random seed of the division of source images into val and test
    batch_size: int = 128  # number of edits made at a time
    # type of the editor's weights; None: float16 on a GPU, float32 on a CPU
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    autocast: bool = True  # compute float32 weights in bf16 if that saves time
    compile: bool = False  # compile the editors' blocks with torch.compile: worth its time for many edits

    def __post_init__(self) -> None:
        for name, least in (("n", 2), ("val_n", 1), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}; got {getattr(self, name)}")
        object.__setattr__(self, "scorers", tuple(map(resolve_spec, self.scorers)))
        self.grid()  # refuses settings that no pipeline takes

    def around(self, base: SamplingConfig) -> "EvaluateConfig":
        """This config with a grid around the base's own settings for each that is not given."""
        steps = self.num_inference_steps or (base.num_inference_steps,)
        scale = base.guidance_scale
        around = (max(1.0, round(scale * 6 / 7, 3)), scale, round(scale * 8 / 7, 3))
        scales = self.guidance_scale or tuple(sorted(set(around)))
        # Below 1, where it says nothing without text guidance, it is refused beside it.
        image = self.image_guidance_scale or (max(1.0, base.image_guidance_scale),)
        return replace(self, num_inference_steps=steps, guidance_scale=scales, image_guidance_scale=image)

    def grid(self) -> list[SamplingConfig]:
        """All settings; what is not given is as it is by default. With a text guidance scale of 1 the image's
        means nothing, and comes once.
        """
        defaults = SamplingConfig()
        images = self.image_guidance_scale or (defaults.image_guidance_scale,)
        steps = self.num_inference_steps or (defaults.num_inference_steps,)
        texts = self.guidance_scale or (defaults.guidance_scale,)
        grid = []
        for n, text, image in product(steps, texts, images):
            if text > 1 or image == images[0]:
                grid.append(SamplingConfig(n, text, image))
        return grid


def require_judge(evaluate: EvaluateConfig | None, rewards: Iterable[ScorerSpec]) -> None:
    """Raises ValueError if the scorer that is to choose the settings is none of the comparison's.

    Args:
        rewards: scorers of the training, which judge too.
    """
    if evaluate is None or evaluate.choose_by is None:
        return
    names = list(map(spec_name, (*rewards, *evaluate.scorers)))
    if evaluate.choose_by not in names:
        raise ValueError(
            f"evaluate.choose_by: expected one of {', '.join(names)}; got {evaluate.choose_by!r}"
        )


def require_variants(variants: Sequence[str]) -> None:
    """Raises ValueError if variants come twice or there are none."""
    if len(set(variants)) != len(variants) or not variants:
        raise ValueError(f"variants: expected each at most once and at least one; got {variants}")
