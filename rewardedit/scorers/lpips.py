"""LPIPS (Zhang et al. 2018) in pure torch: the network behind the scorer, and its published weights."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

SMALLEST = 32  # pixels a side
NETS = {"alex": "alexnet-owt-7be5be79.pth", "vgg": "vgg16-397923af.pth"}  # the backbones' published files
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of pictures in [−1, 1]


class LpipsNetwork(nn.Module):
    """The five layers of AlexNet ("alex") or VGG16 ("vgg") that LPIPS compares, and the weights of their channels."""

    def __init__(self, net: str) -> None:
        super().__init__()
        self.features = _alexnet() if net == "alex" else _vgg16()
        self.layers = (1, 4, 7, 9, 11) if net == "alex" else (3, 8, 15, 22, 29)  # the ReLUs that are read
        widths = (64, 192, 384, 256, 256) if net == "alex" else (64, 128, 256, 512, 512)
        self.heads = nn.ParameterList(torch.ones(1, width, 1, 1) / width for width in widths)

    def forward(self, image: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """Each layer's features of pictures in [0, 1], of unit length over the channels.

        Raises:
            ValueError: on pictures below 32 pixels a side.
        """
        if min(image.shape[-2:]) < SMALLEST:
            raise ValueError(f"lpips: expected pictures of at least {SMALLEST} pixels a side; got {tuple(image.shape[-2:])}")
        shift, scale = (image.new_tensor(v)[:, None, None] for v in (SHIFT, SCALE))
        x, read = (2 * image - 1 - shift) / scale, []
        for i, layer in enumerate(self.features):
            x = layer(x)
            if i in self.layers:
                read.append(F.normalize(x, dim=1, eps=1e-10))
        return read

    def distances(
        self, these: list[Float[Tensor, "b _ _ _"]], those: list[Float[Tensor, "b _ _ _"]]
    ) -> list[Float[Tensor, "b 1 _ _"]]:
        """Each layer's weighted squared distance at each place; LPIPS is the sum of their means."""
        return [(h * (x - y).square()).sum(1, keepdim=True) for h, x, y in zip(self.heads, these, those, strict=True)]


def load_lpips(net: str = "alex", weights: str | Path | None = None) -> LpipsNetwork:
    """LPIPS v0.1 with the published weights from the folder `weights`, by default the one where torch keeps what it downloads.

    Raises:
        ValueError: on another network, or where a file is missing; it says where each can be had.
    """
    if net not in NETS:
        raise ValueError(f"net: expected one of {', '.join(NETS)}; got {net!r}")
    folder = Path(torch.hub.get_dir(), "checkpoints") if weights is None else Path(weights)
    paths = folder / NETS[net], folder / f"lpips-{net}.pth"
    if not all(path.is_file() for path in paths):
        raise ValueError(
            f"lpips: expected {paths[0].name} (torchvision's published weights) and {paths[1].name} (weights/v0.1/{net}.pth "
            f"of richzhang/PerceptualSimilarity on GitHub) in {folder}"
        )
    backbone, heads = (torch.load(path, map_location="cpu", weights_only=True) for path in paths)
    network = LpipsNetwork(net)
    state = {name: value for name, value in backbone.items() if name.startswith("features.")}
    network.load_state_dict(state | {f"heads.{i}": heads[f"lin{i}.model.1.weight"] for i in range(len(network.heads))})
    return network


def _alexnet() -> nn.Sequential:
    pool = nn.MaxPool2d(3, 2)
    first = [nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), pool, nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), pool]
    rest = [(192, 384), (384, 256), (256, 256)]
    return nn.Sequential(*first, *(layer for a, b in rest for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())))


def _vgg16() -> nn.Sequential:
    layers: list[nn.Module] = []
    width = 3
    for wide, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(times):
            layers += [nn.Conv2d(width, wide, 3, padding=1), nn.ReLU()]
            width = wide
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers[:-1])
