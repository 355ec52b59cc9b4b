"""Pairs of images with the differences between them, made of images with boxes (DICE's two training stages).

Stage 1, `similar`: two real images that resemble each other. Objects of a class that only the first has are
REMOVE, those of a class that only the second has are ADD; where one of each lies at the same place, both are
one EDIT. Stage 2, `inpainted`: an object is inpainted away (REMOVE), which read backwards is an ADD, or it is
recoloured or replaced (EDIT).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rewardedit import devices
from rewardedit.data.bad_rows import require_few, unreadable_rows
from rewardedit.data.boxed_images import BoxedImage, BoxedObject, find_file, read_boxed_images
from rewardedit.data.difference_rows import DifferenceRow, plain_difference
from rewardedit.files import write_json
from rewardedit.images import fit, load_image, to_pil
from rewardedit.regions.boxes import pairwise_iou
from rewardedit.regions.differences import Box, Command, Difference
from rewardedit.scorers.dice_text import plain_subject
from rewardedit.scorers.preservation import DinoI
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import stage
from rewardedit.synthesis.difference_settings import DifferencePairsConfig, InpaintedConfig, SimilarConfig
from rewardedit.synthesis.inpainting import (
    COLOURS,
    EMPTY,
    MARGIN,
    Inpaint,
    farthest_colours,
    load_inpainter,
    object_mask,
    pasted,
    recoloured,
)
from rewardedit.untrusted import read_json_file

SHARD = 256  # images of a shard
ROWS = "rows.json"  # in a shard of inpainted images
MADE = "inpainted:"  # before the name of an inpainted image, to tell it from the data set's own
ENCODER_SIDE = 256  # pixels a side of images whose likeness is measured, before the encoder's own crop
BLOCK = 1024  # images compared with all others at a time
COLOURS_CONSIDERED = 4  # of the colours that differ most from an object's
TRIES = 20  # other images that a replacement is looked for in


def require_pairs(config: DifferencePairsConfig) -> list[str]:
    """Lines of a plan; raises ValueError if the annotations or the first image are missing."""
    images = read_boxed_images(_file_of(config), config.limit)
    if not images:
        raise ValueError(f"{config.annotations}: expected images with objects; it has none")
    find_file(images[0], config.folder)
    kind = "similar" if config.similar is not None else "inpainted"
    return [f"pairs: {kind} ones of {len(images)} images with boxes"]


def make_pairs(
    config: DifferencePairsConfig, folder: Path, limit: float, reserved: Sequence[str] = ()
) -> "Pairs":
    """Makes the pairs in stages in `folder`, unless they are there.

    Args:
        limit: largest share of images that may be unreadable.
        reserved: texts that control the model, which are removed from names.

    Raises:
        ValueError: if more are, no pair is found, or nothing is left of a name.
    """
    images = read_boxed_images(_file_of(config), config.limit)
    if config.similar is not None:
        pairs = similar_pairs(config, config.similar, images, folder, limit)
    else:
        assert config.inpainted is not None
        pairs = inpainted_pairs(config, config.inpainted, images, folder, limit)
    for row in range(len(pairs)):
        for difference in pairs.differences(row):
            plain_difference(difference, reserved)
    return pairs


def _file_of(config: DifferencePairsConfig) -> Path:
    path = Path(config.annotations)
    if not path.is_file():
        raise ValueError(f"pairs.annotations: expected a JSON file; {path} is not there")
    return path


@dataclass(frozen=True)
class Pairs(Sequence):
    """Pairs whose images are read from files when they are used."""

    records: list[dict[str, Any]]  # id, source and edited (files), differences
    find: Callable[[str], Path]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> DifferenceRow:  # type: ignore[override]
        record = self.records[index]
        differences = self.differences(index)
        source, edited = (load_image(self.find(record[name])) for name in ("source", "edited"))
        return DifferenceRow(record["id"], source, edited, differences)

    def differences(self, index: int) -> tuple[Difference, ...]:
        """The differences of a pair; no image is read."""
        plain = self.records[index]["differences"]
        return tuple(Difference(one[0], one[1], tuple(one[2])) for one in plain)


def similar_pairs(
    config: DifferencePairsConfig, choice: SimilarConfig, images: list[BoxedImage], folder: Path, limit: float
) -> Pairs:
    """Stage 1: for each image the most similar other one that differs in a few classes, each pair once."""
    shards = list(range(0, len(images), SHARD))
    encoder = Lazy(lambda: DinoI.from_pretrained(choice.encoder).eval().to(devices.default_device()))

    def encode(number: int, path: Path) -> None:
        save_file(_features(images[shards[number] :][:SHARD], config.folder, choice, encoder), path)

    made_of = {"encoder": choice.encoder, **_images_of(config, images)}
    paths = stage(folder / "features", made_of, encode, len(shards), "part-{:05d}.safetensors")
    encoded = list(map(load_file, paths))
    features = torch.cat([shard["features"] for shard in encoded])
    read = torch.cat([shard["read"] for shard in encoded]).bool()
    faults = {int(row): "its image cannot be read" for row in (~read).nonzero().flatten()}
    require_few(folder, unreadable_rows(faults), len(images), limit)

    def match(number: int, path: Path) -> None:
        write_json(path, match_images(images, features, read, choice))

    (path,) = stage(folder / "matched", {"similar": choice, **made_of}, match, 1, "pairs-{:05d}.json")
    records = read_json_file(path)
    if not records:
        raise ValueError(
            f"pairs.similar: no two of {len(images)} images are alike and differ in an object; lower "
            "min_similarity, or raise max_other"
        )
    by_name = {image.file: image for image in images}
    return Pairs(records, lambda name: find_file(by_name[name], config.folder))


def _images_of(config: DifferencePairsConfig, images: Sequence[BoxedImage]) -> dict[str, Any]:
    return {"annotations": config.annotations, "root": config.root, "images": len(images)}


def _features(
    images: Sequence[BoxedImage], folder: Path, choice: SimilarConfig, encoder: Lazy[DinoI]
) -> dict[str, Tensor]:
    """Features (n, d) of images, of length 1, and for each image 1 if it could be read."""
    pixels: list[Tensor] = []
    read: list[int] = []
    for image in images:
        try:
            pixels.append(fit(load_image(find_file(image, folder))[None], ENCODER_SIDE)[0])
            read.append(1)
        except ValueError:
            pixels.append(torch.zeros(3, ENCODER_SIDE, ENCODER_SIDE))
            read.append(0)

    encoded = []
    with torch.no_grad():
        for chunk in torch.stack(pixels).split(choice.batch_size):
            encoded.append(encoder().features(chunk.to(devices.default_device())).cpu())
    features = torch.nn.functional.normalize(torch.cat(encoded), dim=1)
    return {"features": features, "read": torch.tensor(read)}


def match_images(
    images: Sequence[BoxedImage], features: Tensor, read: Tensor, choice: SimilarConfig
) -> list[dict[str, Any]]:
    """Records of the pairs: each image with the most similar one that meets all conditions.

    Args:
        features: (n, d), of length 1.
        read: (n,), False for images that are left out.
    """
    taken: set[tuple[int, int]] = set()
    records = []
    for first in range(0, len(images), BLOCK):
        cosine = features[first : first + BLOCK] @ features.T
        cosine[:, ~read] = -1
        likeness, others = cosine.topk(min(choice.neighbours + 1, len(images)), dim=1)
        for i, (values, row) in enumerate(zip(likeness.tolist(), others.tolist(), strict=True), first):
            for value, j in zip(values, row, strict=True):
                pair = (min(i, j), max(i, j))
                if not read[i] or value < choice.min_similarity:
                    break
                differences = differences_of(images[i], images[j], choice)
                if i != j and differences and pair not in taken:
                    taken.add(pair)
                    records.append(
                        _record(f"{images[i].id}-{images[j].id}", images[i].file, images[j].file, differences)
                    )
                    break
    return records


def differences_of(first: BoxedImage, second: BoxedImage, choice: SimilarConfig) -> list[Difference]:
    """The differences between two images by the classes of their objects; [] if they share too few classes,
    or differ in too many.
    """
    if len(first.names & second.names) < choice.min_shared:
        return []
    if len(first.names ^ second.names) > choice.max_other:
        return []
    gone = [thing for thing in first.objects if thing.name not in second.names]
    new = [thing for thing in second.objects if thing.name not in first.names]
    differences: list[Difference] = []
    replaced: tuple[set[int], set[int]] = (set(), set())
    overlap = pairwise_iou(_boxes(gone), _boxes(new))
    while overlap.numel() and float(overlap.max()) >= choice.edit_iou:
        i, j = divmod(int(overlap.argmax()), overlap.shape[1])
        box = _around(gone[i], new[j]) if choice.boxes == "union" else new[j].box
        differences.append(Difference("EDIT", plain_subject(gone[i].name), box))
        overlap[i], overlap[:, j] = -1, -1
        replaced[0].add(i)
        replaced[1].add(j)
    for command, things, done in (("REMOVE", gone, replaced[0]), ("ADD", new, replaced[1])):
        rest = [thing for i, thing in enumerate(things) if i not in done]
        differences += [_difference(command, thing) for thing in rest]
    return differences


def _boxes(things: Sequence[BoxedObject]) -> Tensor:
    return torch.tensor([thing.box for thing in things], dtype=torch.float32).reshape(-1, 4)


def _around(one: BoxedObject, other: BoxedObject) -> Box:
    (a0, b0, a1, b1), (c0, d0, c1, d1) = one.box, other.box
    return min(a0, c0), min(b0, d0), max(a1, c1), max(b1, d1)


def _difference(command: Command, thing: BoxedObject) -> Difference:
    return Difference(command, plain_subject(thing.name), thing.box)


def _record(name: str, source: str, edited: str, differences: Sequence[Difference]) -> dict[str, Any]:
    plain = [[one.command, one.subject, list(one.box)] for one in differences]
    return {"id": name, "source": source, "edited": edited, "differences": plain}


def inpainted_pairs(
    config: DifferencePairsConfig,
    choice: InpaintedConfig,
    images: list[BoxedImage],
    folder: Path,
    limit: float,
) -> Pairs:
    """Stage 2: one pair of each image that has an object of a fitting size."""
    fitting = [image for image in images if _fitting(image, choice)]
    if not fitting:
        raise ValueError(
            f"pairs.inpainted: none of {len(images)} images has an object of {choice.min_area:g} to "
            f"{choice.max_area:g} of the image; widen min_area or max_area"
        )
    shards = list(range(0, len(fitting), SHARD))
    inpaint = Lazy(lambda: load_inpainter(choice.method))

    def make(number: int, path: Path) -> None:
        path.mkdir()
        rows: dict[str, Any] = {"pairs": [], "faults": {}}
        for at in range(shards[number], min(shards[number] + SHARD, len(fitting))):
            try:
                edited, record = inpaint_one(config, choice, fitting, at, inpaint())
            except ValueError as error:
                rows["faults"][at] = str(error)
                continue
            to_pil(edited).save(path / f"{at}.png")
            rows["pairs"].append(record)
        write_json(path / ROWS, rows)

    made_of = {"inpainted": choice, **_images_of(config, images)}
    paths = stage(folder / "inpainted", made_of, make, len(shards), "part-{:05d}")
    records: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    for path in paths:
        rows = read_json_file(path / ROWS)
        records += rows["pairs"]
        faults |= {int(row): reason for row, reason in rows["faults"].items()}
    require_few(folder, unreadable_rows(faults), len(fitting), limit)
    made = {f"{MADE}{at}.png": paths[at // SHARD] / f"{at}.png" for at in range(len(fitting))}
    by_name = {image.file: image for image in fitting}
    return Pairs(records, lambda name: made.get(name) or find_file(by_name[name], config.folder))


def _fitting(image: BoxedImage, choice: InpaintedConfig) -> list[BoxedObject]:
    return [thing for thing in image.objects if choice.min_area <= thing.area <= choice.max_area]


def inpaint_one(
    config: DifferencePairsConfig,
    choice: InpaintedConfig,
    images: Sequence[BoxedImage],
    at: int,
    inpaint: Inpaint,
) -> tuple[Tensor, dict[str, Any]]:
    """The inpainted image of a pair, and its record; the choices depend on the seed and the image's number.

    Raises:
        ValueError: if an image cannot be read.
    """
    image = images[at]
    rng = np.random.default_rng([choice.seed, at])
    things = _fitting(image, choice)
    thing = things[int(rng.integers(len(things)))]
    pixels = load_image(find_file(image, config.folder))
    height, width = pixels.shape[-2:]
    files = (image.file, f"{MADE}{at}.png")
    if rng.random() >= choice.edit_share:
        mask = object_mask(thing, height, width, MARGIN)
        edited = inpaint(pixels, mask, EMPTY, int(rng.integers(2**31)))
        command: Command = "REMOVE" if rng.random() < 0.5 else "ADD"
        source, result = files if command == "REMOVE" else files[::-1]
        return edited, _record(image.id, source, result, [_difference(command, thing)])

    if rng.random() < choice.colour_share:
        mask = object_mask(thing, height, width)
        names = farthest_colours(pixels, mask)[:COLOURS_CONSIDERED]
        edited = recoloured(pixels, mask, COLOURS[names[int(rng.integers(len(names)))]])
        return edited, _record(image.id, *files, [_difference("EDIT", thing)])

    donor, other = _replacement(images, image, choice, rng)
    if choice.method is None:
        edited = pasted(pixels, thing, load_image(find_file(donor, config.folder)), other)
    else:
        mask = object_mask(BoxedObject(thing.name, thing.box), height, width, MARGIN)
        edited = inpaint(pixels, mask, f"a {other.name}", int(rng.integers(2**31)))
    return edited, _record(image.id, *files, [_difference("EDIT", thing)])


def _replacement(
    images: Sequence[BoxedImage], image: BoxedImage, choice: InpaintedConfig, rng: np.random.Generator
) -> tuple[BoxedImage, BoxedObject]:
    """An object of another image, of a class that this one has not.

    Raises:
        ValueError: if there is none in `TRIES` images.
    """
    for _ in range(TRIES):
        donor = images[int(rng.integers(len(images)))]
        others = [thing for thing in _fitting(donor, choice) if thing.name not in image.names]
        if others:
            return donor, others[int(rng.integers(len(others)))]
    raise ValueError(f"no object of another class to replace one of image {image.id} was found")
