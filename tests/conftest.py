"""Fixtures. What takes seconds to import is imported where tests run: with pytest -n,
one more process only hands them out.
"""

import gc
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

# Before the libraries read them. The cache stands in place of the user's; it is empty but for `published`.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="rewardedit-hub-")


TYPE_CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
UNCHECKED = ("shapes",)  # the renderer's functions are called thousands of times in a test


def typed_modules() -> list[str]:
    """Names of the modules that state shapes of arrays in their signatures."""
    root = Path(__file__).parents[1]
    names = []
    for path in [*root.glob("rewardedit/**/*.py"), *root.glob("trainers/*.py")]:
        parts = path.relative_to(root).with_suffix("").parts
        if "from jaxtyping import" in path.read_text() and not set(parts) & set(UNCHECKED):
            inside = parts if parts[0] == "rewardedit" else ("rewardedit", *parts)
            names.append(".".join(inside).removesuffix(".__init__"))
    return names


# Before any of the modules is imported: shapes and types of arguments are checked in every call.
# A GPU machine may lack the checker.
if importlib.util.find_spec("beartype"):
    install_import_hook(typed_modules(), TYPE_CHECKER)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    """Imports everything in a process that runs tests,
    and starts the server of its forks before any of them has run.
    """
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    import torch

    from rewardedit.cli import quiet
    from tests import forks, standin

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    os.fsync = lambda fd: None  # no power fails here, and the disk would be waited for thousands of times
    quiet()
    if standin.is_wanted(config.getoption("markexpr", "")):
        standin.register()
    forks.start()
    gc.freeze()  # the million objects of the libraries are not looked through again and again
    gc.set_threshold(5000, 10, 10)


def pytest_collection_finish() -> None:
    gc.freeze()  # nor are those of the test files and of what they import


@pytest.fixture(autouse=True, scope="session")
def short_looks() -> Iterator[None]:
    """Previews are there to be looked at: in tests one step will do. Between a base and a fine-tuned editor
    five shares are looked at: in tests the ends will do.
    """
    from rewardedit.training import interpolation, previews

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(previews, "STEPS", 1)
        patch.setattr(interpolation, "WEIGHTS", (0.0, 1.0))
        yield


@pytest.fixture
def unmeasured_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans leave out the memory of their stages, which takes seconds to measure."""
    from rewardedit.training import estimate

    monkeypatch.setattr(estimate, "memory_line", lambda estimate: "memory: left out")


@pytest.fixture(autouse=True)
def notices_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is told what a process is told once."""
    from rewardedit import processes

    monkeypatch.setattr(processes, "_noticed", set())


@pytest.fixture
def standin_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The stand-in is the device that everything runs on."""
    from accelerate.state import AcceleratorState, GradientState

    from tests import standin

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    monkeypatch.setattr("rewardedit.devices.default_device", lambda: standin.NAME)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", standin.NAME)
    forget()
    with standin.in_use():
        yield standin.NAME
    forget()


@pytest.fixture(scope="session")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with tiny models under the published names."""
    from tests.hub_cache import write_cache

    return write_cache(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def published(hub_cache: Path) -> Iterator[Path]:
    """The published models are cached, as tiny ones, for this test."""
    cache = Path(os.environ["HF_HOME"]) / "hub"
    cache.symlink_to(hub_cache)
    yield hub_cache
    cache.unlink()


@pytest.fixture
def other_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of other projects can be imported: stand-ins of those that are not installed."""
    from tests.integrations import standin

    standin.use(monkeypatch)


@pytest.fixture(scope="session")
def tiny_editor(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a saved tiny editor, whose own default is three denoising steps instead of 100."""
    from tests.hub_cache import save_editor

    folder: Path = tmp_path_factory.mktemp("editor")
    save_editor(str(folder))
    return str(folder)


@pytest.fixture
def xformers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Gives UNets the processor that xformers runs in, with PyTorch's kernel in it;
    collects those that it was given.
    """
    from rewardedit.diffusion import editors
    from rewardedit.diffusion.attention import AttentionChoice, HeadsLastProcessor, sdpa
    from rewardedit.training import finetune

    given = []

    def set_attention(unet: Any, *_: Any) -> AttentionChoice:
        unet.set_attn_processor(HeadsLastProcessor(sdpa))
        given.append(unet)
        return AttentionChoice("xformers", "PyTorch's kernel stands in")

    for module in (editors, finetune):
        monkeypatch.setattr(module, "set_attention", set_attention)
    return given


@pytest.fixture(scope="session")
def narrow_sd15(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an editor with Stable Diffusion 1.5's architecture and narrower layers."""
    from tests.models import narrow_pipeline

    folder = tmp_path_factory.mktemp("sd15")
    narrow_pipeline().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_dino(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random DINOv2."""
    from tests.models import save_dino

    folder = str(tmp_path_factory.mktemp("dino"))
    save_dino(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random Qwen2.5-VL that can write grades."""
    from tests.models import save_judge

    return save_judge(str(tmp_path_factory.mktemp("judge")), "qwen2_5_vl")
