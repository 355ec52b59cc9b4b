"""LPIPS (Zhang et al. 2018) in pure torch: the network behind the scorer, and its published weights."""

from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import is_offline_mode
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rewardedit.models import NotOnHub, pretrained

SMALLEST = 32  # pixels a side
TORCHVISION = "https://download.pytorch.org/models/"
AUTHORS = "https://raw.githubusercontent.com/richzhang/PerceptualSimilarity/master/lpips/weights/v0.1/"


@dataclass(frozen=True)
class Published:
    """A file of published weights: its local name, its URL, and the beginning of its SHA-256."""

    name: str
    url: str
    sha256: str


NETS = {  # the backbone as torchvision publishes it, and the authors' weights of its channels
    "alex": (
        Published("alexnet-owt-7be5be79.pth", f"{TORCHVISION}alexnet-owt-7be5be79.pth", "7be5be79"),
        Published(
            "lpips-alex.pth",
            f"{AUTHORS}alex.pth",
            "df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0",
        ),
    ),
    "vgg": (
        Published("vgg16-397923af.pth", f"{TORCHVISION}vgg16-397923af.pth", "397923af"),
        Published(
            "lpips-vgg.pth",
            f"{AUTHORS}vgg.pth",
            "a78928a0af1e5f0fcb1f3b9e8f8c3a2a5a3de244d830ad5c1feddc79b8432868",
        ),
    ),
}
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)  # mean and scale of images in [−1, 1]


class LpipsNetwork(nn.Module):
    """The five layers of AlexNet ("alex") or VGG16 ("vgg") that LPIPS compares,
    and the weights of their channels.
    """

    def __init__(self, net: str) -> None:
        super().__init__()
        self.features = _alexnet() if net == "alex" else _vgg16()
        self.layers = (1, 4, 7, 9, 11) if net == "alex" else (3, 8, 15, 22, 29)  # the ReLUs that are read
        widths = (64, 192, 384, 256, 256) if net == "alex" else (64, 128, 256, 512, 512)
        self.heads = nn.ParameterList(torch.ones(1, width, 1, 1) / width for width in widths)

    def forward(self, image: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """Features of images in [0, 1] at each layer, of unit length over the channels.

        Raises:
            ValueError: on images below 32 pixels a side.
        """
        if min(image.shape[-2:]) < SMALLEST:
            raise ValueError(
                f"lpips: expected images of at least {SMALLEST} pixels a side; got {tuple(image.shape[-2:])}"
            )
        image = image.float()  # the weights' dtype
        shift = image.new_tensor(SHIFT)[:, None, None]
        scale = image.new_tensor(SCALE)[:, None, None]
        x = (2 * image - 1 - shift) / scale
        read = []
        for i, layer in enumerate(self.features):
            x = layer(x)
            if i in self.layers:
                read.append(F.normalize(x, dim=1, eps=1e-10))
        return read

    def distances(
        self, these: list[Float[Tensor, "b _ _ _"]], those: list[Float[Tensor, "b _ _ _"]]
    ) -> list[Float[Tensor, "b 1 _ _"]]:
        """The weighted squared distances of each layer at each place; LPIPS is the sum of their means."""
        distances = []
        for head, this, that in zip(self.heads, these, those, strict=True):
            distances.append((head * (this - that).square()).sum(1, keepdim=True))
        return distances


def load_lpips(net: str = "alex", weights: str | Path | None = None) -> LpipsNetwork:
    """Loads LPIPS v0.1 with the published weights from the folder `weights`.

    By default the folder is torch's own for downloads, and missing files are fetched into it unless
    `HF_HUB_OFFLINE` is set.

    Raises:
        ValueError: on another network, or if a file is missing and cannot be fetched; the message names the
            address of each file.
    """
    if net not in NETS:
        raise ValueError(f"net: expected one of {', '.join(NETS)}; got {net!r}")
    folder = Path(torch.hub.get_dir(), "checkpoints") if weights is None else Path(weights)
    for file in NETS[net]:
        if not (folder / file.name).is_file():
            if weights is not None or is_offline_mode():
                reason = "the folder lacks them" if weights is not None else "HF_HUB_OFFLINE is set"
                raise _missing(net, folder, reason) from NotOnHub() if weights is None else None
            _fetch(net, file, folder)

    network = LpipsNetwork(net)
    with pretrained.reading(str(folder)):
        backbone, heads = (
            torch.load(folder / file.name, map_location="cpu", weights_only=True) for file in NETS[net]
        )
        state = {name: value for name, value in backbone.items() if name.startswith("features.")}
        for i in range(len(network.heads)):
            state[f"heads.{i}"] = heads[f"lin{i}.model.1.weight"]
        network.load_state_dict(state)
    return network


def _fetch(net: str, file: Published, folder: Path) -> None:
    """Downloads a file to a temporary name and moves it into place once its SHA-256 is verified."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(file.url, str(folder / file.name), file.sha256, progress=False)
    except (OSError, RuntimeError) as error:  # RuntimeError: another SHA-256
        raise _missing(net, folder, f"fetching failed: {error}") from error


def _missing(net: str, folder: Path, why: str) -> ValueError:
    files = " and ".join(f"{file.name} ({file.url})" for file in NETS[net])
    return ValueError(f"lpips: expected {files} in {folder}; {why}; fetch them there where you are online")


def _alexnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    )


def _vgg16() -> nn.Sequential:
    layers: list[nn.Module] = []
    width = 3
    for wide, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(times):
            layers += [nn.Conv2d(width, wide, 3, padding=1), nn.ReLU()]
            width = wide
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers[:-1])
