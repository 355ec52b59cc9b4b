"""Training data of a scorer, read from the run that trained it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.data.adapters import ADAPTERS
from rewardedit.evaluation.protocols.protocol import TrainingData
from rewardedit.scorer_spec import ScorerSpec
from rewardedit.scorers.load import models_of

CONFIG = "config.yaml"  # in a run's folder
MADE_OF = ("labelled",)  # data sets that another run has made: theirs count
NOT_TRAINED_ON = ("evaluate", "held_out", "monitor")  # groups of settings
UP = 3  # folders between a checkpoint and its run
DEEP = 4  # runs one after another
OTHER_SPLIT = re.compile(r"(?<![a-z])(?:dev|val|test)(?![a-z])")


def trained_on(spec: ScorerSpec, **options: Any) -> list[TrainingData]:
    """The data sets that the checkpoints of a scorer were trained on; [] where no run's settings lie by them,
    as for models of the hub.
    """
    training_data: list[TrainingData] = []
    for model in models_of(spec, **options):
        training_data += _of_checkpoint(Path(model), DEEP)
    return list(dict.fromkeys(training_data))


def _of_checkpoint(path: Path, deep: int) -> list[TrainingData]:
    folder = path.resolve()
    for run in [folder, *folder.parents][:UP]:
        if path.exists() and (run / CONFIG).is_file():
            return _of_settings(configs.load_yaml(run / CONFIG), deep)
    return []


def _of_settings(settings: Any, deep: int) -> list[TrainingData]:
    training_data = []
    for data in _data_sets(settings):
        name, path = data["name"], str(data.get("path", ""))
        if name in MADE_OF and deep:
            training_data += _of_checkpoint(Path(path), deep - 1)
        else:
            split = str(data.get("split", "train"))
            file = OTHER_SPLIT.search(Path(path).name)
            training_data.append(TrainingData(name, file[0] if split == "train" and file else split, path))
    return training_data


def _data_sets(settings: Any) -> Iterator[Mapping[str, Any]]:
    """Groups of settings that name a data set."""
    if isinstance(settings, Mapping):
        if settings.get("name") in ADAPTERS and "path" in settings:
            yield settings
            return
        for key, value in settings.items():
            if key not in NOT_TRAINED_ON:
                yield from _data_sets(value)
