"""Models of DICE: checkpoints that the recipes train, and the layout of the published ones."""

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from rewardedit import devices
from rewardedit.files import to_json
from rewardedit.language.vlm import Bits, Vlm, load_parts, load_processor, load_vlm, quantised, require_vlm
from rewardedit.language.vlm_weights import load_adapter, save_adapter
from rewardedit.language.vocabulary import make_room
from rewardedit.models import fetched, is_hub_name, resolve_model
from rewardedit.scorers.dice_text import DICE_SETTINGS, DiceFormat
from rewardedit.scorers.dice_vlm import DiceVlm
from rewardedit.untrusted import file_inside, read_settings_file

ADAPTER = "adapter"  # folder of the LoRA in a checkpoint of ours
QUANTIZE = ("4bit", "8bit", "none")
COMPATS = ("paper", "code")
CODE_EDGE = 1456  # longest edge of an image for the published checkpoints
CODE_BASE = "HuggingFaceM4/Idefics3-8B-Llama3"  # model that the published checkpoints were trained on
# Files of which a folder with a processor has one, in each of the two lists.
PROCESSOR_FILES = (
    ("processor_config.json", "preprocessor_config.json"),
    ("tokenizer.json", "tokenizer_config.json"),
)


@dataclass(frozen=True)
class DiceSource:
    """Place of a part's model: a hub name or folder, and with compat="code" the folders within it."""

    checkpoint: str
    subfolder: str | None = None  # folder of the merged base; None: `base`, or the only one with a model
    adapter: str | None = None  # folder of the LoRA; None: the only one that holds a LoRA
    # hub name or folder of the model that was trained: the base model of a repository without one, and the
    # processor of a `subfolder` without one
    base: str | None = None

    @classmethod
    def of(cls, value: Any) -> "DiceSource":
        """Reads a name, or a mapping with the fields of this class.

        Raises:
            ValueError: on anything else.
        """
        if isinstance(value, str):
            return cls(value)
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(value, Mapping) or "checkpoint" not in value or not set(value) <= set(names):
            raise ValueError(f"dice: expected a model or a mapping with {', '.join(names)}; got {value!r}")
        return cls(**value)


@dataclass(frozen=True)
class ModelOptions:
    """Options for loading the models of both parts."""

    compat: str = "paper"  # one of `COMPATS`
    quantize: str | None = None  # None: "4bit" with compat="code", else "none"
    # None: that of `devices.llm_dtype`; with compat="code" float16 unless "none" is quantised
    dtype: torch.dtype | str | None = None
    longest_edge: int | None = None  # longest edge of an image, for processors with such a setting

    def __post_init__(self) -> None:
        if self.compat not in COMPATS:
            raise ValueError(f"compat: expected one of {', '.join(COMPATS)}; got {self.compat!r}")
        if self.quantize not in (None, *QUANTIZE):
            raise ValueError(f"quantize: expected one of {', '.join(QUANTIZE)}; got {self.quantize!r}")
        if self.longest_edge is not None and self.longest_edge < 1:
            raise ValueError(f"longest_edge: expected at least 1 pixel, or None; got {self.longest_edge}")

    @property
    def bits(self) -> Bits | None:
        """Bits of the language model's weights; None if they are not quantised."""
        chosen = self.quantize or ("4bit" if self.compat == "code" else "none")
        return None if chosen == "none" else cast(Bits, chosen)

    def load(self, name: str, adapter: str | None = None, processor: str | None = None) -> Vlm:
        """Loads a model by hub name or folder, with a LoRA; the LoRA is merged unless the model is quantised,
        as it would be rounded.

        Args:
            processor: hub name or folder of the processor; None: that of the model.
        """
        dtype = devices.llm_dtype(self.dtype)
        if self.bits is None:
            return load_vlm(name, adapter=adapter, dtype=dtype, processor=processor)
        device = devices.default_device()  # quantised weights stay there
        dtype = torch.float16 if self.compat == "code" else dtype
        require_vlm(name)
        options = quantised(self.bits, device, dtype, double=self.compat != "code")
        return Vlm(*load_parts(resolve_model(name), adapter, dtype, processor, **options))


def load_dice(source: Any, options: ModelOptions | None = None) -> DiceVlm:
    """Loads the model of a part.

    Args:
        source: see `DiceSource.of`. A folder with `DICE_SETTINGS` is a checkpoint of ours; any other
            vision-language model is asked with the full prompts.

    Raises:
        ValueError: if there is no such model, or its folder is laid out otherwise.
    """
    options = options or ModelOptions()
    place = DiceSource.of(source)
    if options.compat == "code":
        vlm, settings = _published(place, options), DiceFormat(prompts="code")
    elif place.subfolder or place.adapter or place.base:
        raise ValueError('dice: subfolder, adapter and base are for compat="code"; name a checkpoint alone')
    else:
        vlm, settings = _own(place.checkpoint, options)
    _set_longest_edge(vlm, options)
    return DiceVlm(vlm, settings, place.checkpoint)


def _own(checkpoint: str, options: ModelOptions) -> tuple[Vlm, DiceFormat]:
    settings = settings_of(checkpoint)
    if settings is None:
        return options.load(checkpoint), DiceFormat()
    folder = str(fetched(checkpoint))
    if settings.base is None:
        return options.load(folder), settings
    vlm = options.load(settings.base)
    # The folder's processor has the tokens that the training added.
    processor = load_processor(folder, vlm.model.config.model_type)
    make_room(vlm.model, processor.tokenizer)
    adapted = load_adapter(vlm.model, str(Path(folder) / ADAPTER), settings.base)
    model = adapted.get_base_model() if options.bits else adapted.merge_and_unload()
    return Vlm(model.eval().requires_grad_(False), processor), settings


def settings_of(checkpoint: str) -> DiceFormat | None:
    """The settings of a checkpoint of ours; None for any other model.

    Raises:
        ValueError: if its settings cannot be read.
    """
    file = fetched(checkpoint, [DICE_SETTINGS]) / DICE_SETTINGS
    return DiceFormat.of(read_settings_file(file)) if file.is_file() else None


def save_dice(folder: Path, dice: DiceVlm, adapter: Any = None) -> None:
    """Saves model, processor and settings for `load_dice`; with an `adapter` (the model wrapped by PEFT),
    only the adapter's weights in place of the model, whose name is then `dice.format.base`.
    """
    if adapter is None:
        dice.vlm.model.save_pretrained(folder)
    else:
        save_adapter(adapter, folder / ADAPTER)
    dice.vlm.processor.save_pretrained(folder)
    settings = dataclasses.replace(dice.format, base=None if adapter is None else dice.format.base)
    (folder / DICE_SETTINGS).write_text(to_json(asdict(settings), indent=2) + "\n")


def _published(place: DiceSource, options: ModelOptions) -> Vlm:
    """The model of a repository with a LoRA, and a merged base beside it unless `base` is its model.

    Raises:
        ValueError: if there is no such folder, or neither it nor `base` has a processor.
    """
    root = Path(place.checkpoint)
    if is_hub_name(place.checkpoint):
        root = fetched(place.checkpoint)
    if not root.is_dir():
        raise ValueError(
            f"dice {place.checkpoint!r}: expected a folder or a repository on the hub; there is none"
        )
    adapter = str(_only_folder(root, place.adapter, "adapter_config.json", "adapter"))
    if place.base is not None and place.subfolder is None:
        return options.load(place.base, adapter)
    merged = _only_folder(root, place.subfolder, "config.json", "subfolder")
    if _has_processor(merged):
        return options.load(str(merged), adapter)
    if place.base is None:
        raise ValueError(
            f"dice: base: expected the model that was trained, as {merged} has no processor; published ones "
            f"have base: {CODE_BASE}"
        )
    return options.load(str(merged), adapter, place.base)


def _has_processor(folder: Path) -> bool:
    return all(any((folder / name).is_file() for name in names) for names in PROCESSOR_FILES)


def _only_folder(root: Path, name: str | None, file: str, option: str) -> Path:
    """The folder within a repository that holds a file: the named one, else the only one.

    Raises:
        ValueError: if there is none, several, or the named one lies elsewhere.
    """
    if name is not None:
        try:
            file_inside(root, f"{name}/{file}")
        except FileNotFoundError as error:
            raise ValueError(
                f"dice: {option}: expected a folder with {file} in {root}; got {name}"
            ) from error
        return root / name
    folders = sorted({path.parent for path in root.rglob(file)})
    if len(folders) != 1:
        names = ", ".join(str(path.relative_to(root)) for path in folders) or "none"
        named = "subfolder, or elsewhere: base" if option == "subfolder" else option
        raise ValueError(f"dice: expected one folder with {file} in {root}; found {names}; name it: {named}")
    return folders[0]


def _set_longest_edge(vlm: Vlm, options: ModelOptions) -> None:
    edge = options.longest_edge or (CODE_EDGE if options.compat == "code" else None)
    if edge is None:
        return
    images = vlm.processor.image_processor
    if "longest_edge" not in (images.size or {}):
        raise ValueError(f"longest_edge: {type(images).__name__} has no such setting; leave it out")
    images.size = {"longest_edge": edge}
