"""A cache in the hub's layout, with tiny models of the real classes under the published names."""

import shutil
from collections.abc import Callable
from pathlib import Path

from rewardedit import models
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.diffusion.saving import save_settings
from rewardedit.evaluation.protocols import magicbrush
from tests.models import save_dino, save_judge, tiny_pipeline
from tests.region_models import save_detector, save_segmenter

REVISION = "0" * 40


def save_clip(folder: str) -> None:
    """Saves a CLIP: the offline world's."""
    shutil.copytree(models.resolve_model("shapes/clip"), folder, dirs_exist_ok=True)


def save_editor(folder: str) -> None:
    """Saves a tiny editor whose own default is three denoising steps, where a published one's is 100."""
    tiny_pipeline().save_pretrained(folder)
    save_settings(Path(folder), SamplingConfig(3))


SAVERS: dict[str, Callable[[str], object]] = {
    models.CLIP: save_clip,
    models.DINO: save_dino,
    magicbrush.CLIP: save_clip,
    magicbrush.DINO: save_dino,
    models.DETECTOR: lambda folder: save_detector(folder, "grounding-dino"),
    models.SEGMENTER: lambda folder: save_segmenter(folder, "sam"),
    models.JUDGE: lambda folder: save_judge(folder, "qwen2_5_vl"),
    "Qwen/Qwen2.5-VL-3B-Instruct": lambda folder: save_judge(folder, "qwen2_5_vl"),  # of the 24 GB recipes
    models.EDITOR: save_editor,
}


def write_cache(folder: Path) -> Path:
    """Writes the cache; returns `folder`, which HF_HUB_CACHE is to name."""
    for name, save in SAVERS.items():
        repo = folder / f"models--{name.replace('/', '--')}"
        snapshot = repo / "snapshots" / REVISION
        snapshot.mkdir(parents=True)
        save(str(snapshot))
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(REVISION)
    return folder
