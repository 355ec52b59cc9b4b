"""Inpainting of objects: by any inpainting pipeline of diffusers, or without a model."""

import inspect
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image, ImageDraw
from torch import Tensor

from rewardedit import devices
from rewardedit.data.boxed_images import BoxedObject
from rewardedit.images import resize, to_pil, to_tensor
from rewardedit.models import pretrained
from rewardedit.regions.change_map import dilated
from rewardedit.synthesis.methods import MethodConfig

# image, mask of what is filled, text of what is to be there, seed of the noise
Inpaint = Callable[[Float[Tensor, "3 h w"], Float[Tensor, "1 h w"], str, int], Float[Tensor, "3 h w"]]
EMPTY = "background, nothing else"  # text of a place that an object is removed from
SIDE = 512  # longest side at which a pipeline inpaints
MULTIPLE = 64  # of a pipeline's sides; Kandinsky rounds its noise up to it, but not the image
MARGIN = 0.01  # by which a mask is widened, as a share of the longer side
GRAY = (0.299, 0.587, 0.114)  # luma of RGB
COLOURS = {
    "red": (0.85, 0.15, 0.15),
    "green": (0.15, 0.6, 0.2),
    "blue": (0.15, 0.3, 0.85),
    "yellow": (0.95, 0.85, 0.2),
    "orange": (0.95, 0.5, 0.1),
    "purple": (0.5, 0.15, 0.65),
    "white": (0.97, 0.97, 0.97),
    "black": (0.08, 0.08, 0.08),
}


def load_inpainter(config: MethodConfig | None) -> Inpaint:
    """An inpainting pipeline of diffusers, or with None `fill`, which ignores the text.

    Raises:
        ValueError: if the pipeline is missing or takes no mask.
    """
    if config is None:
        return lambda image, mask, text, seed: fill(image, mask)
    from diffusers import AutoPipelineForInpainting

    dtype = devices.inference_dtype(config.dtype)
    try:
        pipe = pretrained.load(AutoPipelineForInpainting, config.model, torch_dtype=dtype)
    except OSError as error:
        raise ValueError(f"inpainting {config.model!r}: {str(error).splitlines()[0]}") from error
    if "mask_image" not in inspect.signature(pipe.__call__).parameters:
        raise ValueError(f"{config.model}: expected a pipeline that inpaints; got {type(pipe).__name__}")
    pipe = pipe.to(devices.default_device())
    pipe.set_progress_bar_config(disable=True)

    def inpaint(image: Tensor, mask: Tensor, text: str, seed: int) -> Tensor:
        height, width = image.shape[-2:]
        scale = min(1.0, SIDE / max(height, width))
        size = [max(MULTIPLE, round(side * scale / MULTIPLE) * MULTIPLE) for side in (height, width)]
        made = pipe(
            prompt=text,
            image=to_pil(resize(image[None], (size[0], size[1]))[0]),
            mask_image=to_pil(resize(mask[None], (size[0], size[1]), "bilinear")[0].expand(3, -1, -1)),
            height=size[0],
            width=size[1],
            num_inference_steps=config.num_inference_steps,
            guidance_scale=config.guidance_scale,
            generator=torch.Generator().manual_seed(seed),
        ).images[0]
        filled = resize(to_tensor(made, 3)[None], (height, width))[0]
        return torch.lerp(image, filled, mask.expand_as(image))  # nothing changes outside of the mask

    return inpaint


def fill(image: Float[Tensor, "3 h w"], mask: Float[Tensor, "1 h w"]) -> Float[Tensor, "3 h w"]:
    """The image with the masked pixels filled smoothly from those around them: means of the known pixels in
    ever larger squares (Gortler et al. 1996, push and pull).
    """
    return _fill(image[None], (mask[None] < 0.5).float())[0]


def _fill(image: Float[Tensor, "1 3 h w"], known: Float[Tensor, "1 1 h w"]) -> Float[Tensor, "1 3 h w"]:
    if bool(known.all()) or max(image.shape[-2:]) == 1:
        return image
    share = F.avg_pool2d(known, 2, ceil_mode=True)
    means = F.avg_pool2d(image * known, 2, ceil_mode=True) / share.clamp_min(1e-6)
    coarse = _fill(means, (share > 0).float())
    smooth = F.interpolate(coarse, image.shape[-2:], mode="bilinear", align_corners=False)
    return torch.where(known > 0, image, smooth)


def object_mask(thing: BoxedObject, height: int, width: int, margin: float = 0.0) -> Float[Tensor, "1 h w"]:
    """1 on the object: within its outline, or its box if it has none.

    Args:
        margin: by which the mask is widened, as a share of the longer side.
    """
    canvas = Image.new("L", (width, height))
    draw = ImageDraw.Draw(canvas)
    for polygon in thing.polygons:
        points = [(x * width, y * height) for x, y in zip(polygon[::2], polygon[1::2], strict=True)]
        draw.polygon(points, fill=255)
    if not thing.polygons:
        x0, y0, x1, y1 = thing.box
        draw.rectangle((x0 * width, y0 * height, x1 * width - 1, y1 * height - 1), fill=255)
    mask = (to_tensor(canvas, 3)[:1] > 0.5).float()
    radius = round(margin * max(height, width))
    return dilated(mask[None], radius)[0] if radius else mask


def recoloured(
    image: Float[Tensor, "3 h w"], mask: Float[Tensor, "1 h w"], colour: tuple[float, float, float]
) -> Float[Tensor, "3 h w"]:
    """The image with the masked pixels in another colour, which keeps their light and shade."""
    light = (image * image.new_tensor(GRAY)[:, None, None]).sum(0, keepdim=True)
    mean = (light * mask).sum() / mask.sum().clamp_min(1)
    painted = image.new_tensor(colour)[:, None, None] * (0.5 + 0.5 * light / mean.clamp_min(0.05))
    return torch.where(mask > 0.5, painted.clamp(0, 1), image)


def farthest_colours(image: Float[Tensor, "3 h w"], mask: Float[Tensor, "1 h w"]) -> list[str]:
    """Names of COLOURS, those first that differ most from the masked pixels."""
    mean = (image * mask).flatten(1).sum(1) / mask.sum().clamp_min(1)
    distance = {name: float((mean - mean.new_tensor(rgb)).norm()) for name, rgb in COLOURS.items()}
    return sorted(distance, key=lambda name: -distance[name])


def pasted(
    image: Float[Tensor, "3 h w"], place: BoxedObject, donor: Float[Tensor, "3 h2 w2"], thing: BoxedObject
) -> Float[Tensor, "3 h w"]:
    """The image with another image's object, stretched into the box of `place`."""
    height, width = image.shape[-2:]
    left, top, right, bottom = _pixels(place, height, width)
    x0, y0, x1, y1 = _pixels(thing, *donor.shape[-2:])
    size = (bottom - top, right - left)
    cut = resize(donor[None, :, y0:y1, x0:x1], size)[0]
    alpha = resize(object_mask(thing, *donor.shape[-2:])[None, :, y0:y1, x0:x1], size, "bilinear")[0]
    result = image.clone()
    window = result[:, top:bottom, left:right]
    window.lerp_(cut, alpha.expand_as(cut))
    return result


def _pixels(thing: BoxedObject, height: int, width: int) -> tuple[int, int, int, int]:
    """The object's box in whole pixels, at least one of each."""
    x0, y0, x1, y1 = thing.box
    left, top = min(int(x0 * width), width - 1), min(int(y0 * height), height - 1)
    return left, top, max(round(x1 * width), left + 1), max(round(y1 * height), top + 1)
