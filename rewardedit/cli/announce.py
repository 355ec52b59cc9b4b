"""Announces what a command will do outside its own folder: third-party code that it imports, hosts that it
contacts and what it sends there, the variables that hold its keys, folders that it deletes, files that it
writes elsewhere, and what it downloads.

All settings are examined, whatever their names: an address anywhere counts as a host that is contacted.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rewardedit.cli.downloads import size_of
from rewardedit.config import to_dict
from rewardedit.language.endpoint_settings import Destination, destinations
from rewardedit.models import TERMS, is_hub_name, no_network, refusal
from rewardedit.processes import processes
from rewardedit.scorer_spec import ScorerSpec, all_terms
from rewardedit.untrusted import printable

TEXTS = ("parser", "parser_options")  # settings whose endpoint sees only instructions
WRITTEN = ("parser_cache",)  # settings that name a file which is written
LOCAL_TRACKERS = ("none", "tensorboard", "dvclive", "aim")  # those that write files on this machine
HUB = "https://huggingface.co"


@dataclass(frozen=True)
class OnHub:
    """A repository as the hub lists it."""

    size: int  # bytes
    licence: str | None = None  # the name that its card gives; None: it gives none
    gated: bool = False  # it is given to those who have accepted its terms
    rows: Mapping[str, int] = field(
        default_factory=dict
    )  # number of rows of each split of a data set, by its card
    refusal: str | None = None  # the hub's, if it does not give it to this user


@runtime_checkable
class Needed(Protocol):
    """Something that settings name and that is missing, such as `cli.needs.Missing`."""

    kind: Any
    name: str
    on_hub: bool
    streamed: bool


def announcements(
    settings: Any,
    needs: Iterable[Needed] = (),
    replaced: Path | None = None,
    on_hub: Mapping[str, OnHub] | None = None,
) -> list[str]:
    """Returns one line for each of these actions.

    Args:
        settings: of a trainer or a command.
        needs: everything that they name and that is missing.
        replaced: the folder of an earlier run, which is deleted once the new one has begun.
        on_hub: the repositories of the downloads, as far as the hub reports them.

    Raises:
        ValueError: if a key would be sent to a place where it may not go.
    """
    values = to_dict(settings)
    lines = [f"runs code that is not rewardedit's: {name}" for name in own_code(values)]
    lines += [f"asks {where}; sent there: {what}" for where, what in hosts(values)]
    for name in trackers(values):
        lines.append(f"tracker {name}: metrics, settings and previews are sent to its server")
    lines += [f"writes {name}" for name in written(values)]
    if replaced is not None:
        lines.append(f"replaces the run in {replaced}, which is deleted when the new one has begun")
    on_hub = on_hub or {}
    lines += [download_line(need, on_hub.get(need.name)) for need in needs if need.on_hub]
    return list(dict.fromkeys(lines))


def announce(lines: Sequence[str]) -> None:
    """Prints lines for people, on the main process."""
    if processes().is_main_process:
        for line in lines:
            print(line, file=sys.stderr)


def announce_scorers(specs: Iterable[ScorerSpec], **options: Any) -> None:
    """Announces what scorers do, before they are loaded.

    Args:
        options: given to all of them.
    """
    terms = []
    for spec in specs:
        for name, term in all_terms(spec):
            terms.append({name: {**term.options, **options}})
    announce(announcements(terms))


def announce_models(specs: Mapping[str, ScorerSpec], **options: Any) -> None:
    """Says which models scorers will load, and which of them are downloaded.

    Args:
        specs: by the names that the command line gives them.
        options: given to all of them.
    """
    from rewardedit.scorers.load import models_of

    lines: list[str] = []
    models: list[str] = []
    for name, spec in specs.items():
        of_scorer = models_of(spec, **options)
        if of_scorer:
            lines.append(f"{name}: {', '.join(of_scorer)}")
        models += of_scorer
    announce(lines)
    announce_downloads(models)


def announce_editor(model: str) -> None:
    """Says which editor is loaded, and what is downloaded for it."""
    announce([f"editor: {model}"])
    announce_downloads([model])


def announce_downloads(models: Iterable[str]) -> None:
    """Says which of these models are not there yet, and how large they are.

    Raises:
        ValueError: if one is to be downloaded and the hub cannot be reached.
    """
    names = list(filter(is_hub_name, dict.fromkeys(models)))
    if not names:
        return
    from rewardedit.cli.checks import hub_cache
    from rewardedit.cli.needs import Reference, missing

    cache = hub_cache()
    needs = []
    for name in names:
        need = missing(Reference("model", name), cache, ())
        if need is not None and need.on_hub:
            needs.append(need)
    on_hub = look_on_hub(needs, required=True)
    announce([download_line(need, on_hub.get(need.name)) for need in needs])


def own_code(values: Any) -> list[str]:
    """Third-party code that scorers name, as package.module:Class or file.py:function, in any setting that
    may hold a scorer; it is imported when they are used.
    """
    names: list[str] = []
    if isinstance(values, str):
        with suppress(ValueError):  # it is no scorer
            names += [name for name, _ in all_terms(values) if _is_code(name)]
    elif isinstance(values, Mapping):
        names += filter(_is_code, values)
        names += chain.from_iterable(map(own_code, values.values()))
    elif isinstance(values, list | tuple):
        names += chain.from_iterable(map(own_code, values))
    return list(dict.fromkeys(names))


def _is_code(name: Any) -> bool:
    """True for module:NAME; False for an address, a text or a drive."""
    if not isinstance(name, str) or not name.isprintable() or any(mark in name for mark in " {}"):
        return False
    module, colon, attribute = name.rpartition(":")
    return bool(colon) and len(module) > 1 and attribute.isidentifier() and "//" not in name


def hosts(values: Any, key_variable: str | None = None) -> Iterator[tuple[Destination, str]]:
    """The hosts that settings name, each with its key's variable, and what is sent there.

    Args:
        key_variable: the one that the enclosing settings give.
    """
    if isinstance(values, Mapping):
        key_variable = values.get("key_variable", key_variable)
        texts = {key: value for key, value in values.items() if key in TEXTS}
        for where in destinations(texts | {"key_variable": key_variable}):
            yield where, "instructions"
        for key, value in values.items():
            if key not in texts and key != "key_variable":
                yield from hosts(value, key_variable)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from hosts(value, key_variable)
    elif isinstance(values, str):
        addresses = destinations({"address": values, "key_variable": key_variable})
        for where in addresses:
            yield where, "images and instructions"


def trackers(values: Any) -> list[str]:
    """The trackers of a training that send what they log to a server."""
    if not isinstance(values, Mapping):
        return []
    nested = list(chain.from_iterable(map(trackers, values.values())))
    name = values.get("tracker")
    return [name, *nested] if isinstance(name, str) and name not in LOCAL_TRACKERS else nested


def written(values: Any) -> list[str]:
    """Files that settings name and that the command writes."""
    if isinstance(values, list | tuple):
        return list(chain.from_iterable(map(written, values)))
    if not isinstance(values, Mapping):
        return []
    paths = [str(values[key]) for key in WRITTEN if values.get(key)]
    return [*paths, *chain.from_iterable(map(written, values.values()))]


def download_line(need: Needed, listing: OnHub | None) -> str:
    """e.g. "downloads the model a/b from https://huggingface.co: at most 4.3 GB, licence mit"."""
    if listing is not None and listing.refusal is not None:
        return f"cannot download: {listing.refusal}"
    size = "size and licence unknown"
    known = size_of(need.name)
    if listing is not None:
        size = f"at most {listing.size / 1e9:.1f} GB, licence {listing.licence or 'not stated'}"
        size += f"; gated: {TERMS}" if listing.gated else ""
    elif known is not None:
        size = f"about {known:g} GB, licence unknown until the hub is reached"
    verb = "streams" if need.streamed else "downloads"
    return f"{verb} the {need.kind} {need.name} from {os.environ.get('HF_ENDPOINT', HUB)}: {size}"


def look_on_hub(needs: Iterable[Needed], required: bool = False) -> dict[str, OnHub]:
    """Sizes and licences of the repositories to be downloaded, by name; those that the hub does not report
    within a few seconds are left out, and after the first request without an answer no other is made.

    Args:
        required: they are needed now, so that a hub that cannot be reached, or refuses one, is an error.

    Raises:
        ValueError: if they are required, and the hub cannot be reached or refuses one.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    by_name: dict[str, OnHub] = {}
    for need in needs:
        if not need.on_hub:
            continue
        kind = "dataset" if need.kind == "data" else "model"
        try:
            info = HfApi().repo_info(need.name, repo_type=kind, files_metadata=True, timeout=5)
            size = sum(file.size or 0 for file in info.siblings or ())
            rows = rows_in(info.card_data) if kind == "dataset" else {}
            by_name[need.name] = OnHub(size, licence_in(info.tags or ()), bool(info.gated), rows)
        except HfHubHTTPError as error:
            refused = refusal(f"{need.kind} {need.name}", error)
            if refused is None:
                continue  # the hub is busy, or at fault
            if required:
                raise ValueError(refused) from error
            by_name[need.name] = OnHub(0, refusal=refused)
        except Exception as error:  # any: there was no answer
            if required:
                raise ValueError(no_network(need.name)) from error
            break
    return by_name


@contextmanager
def offline() -> Iterator[None]:
    """Keeps the libraries from asking the hub: a plan fetches nothing, and a hub that gave no answer would be
    asked for minutes. That 🤗 datasets then takes what is in the cache is no news.
    """
    import datasets
    from huggingface_hub import constants

    logger = logging.getLogger(datasets.__name__)
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE, logger.level
    constants.HF_HUB_OFFLINE = True
    datasets.config.HF_HUB_OFFLINE = True
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE, level = before
        logger.setLevel(level)


def rows_in(card: Any) -> dict[str, int]:
    """Number of rows of each split, as a data set's card lists them; {} if it does not, or has several
    tables.
    """
    info = card.get("dataset_info") if card is not None else None
    tables = info if isinstance(info, list) else [info]
    splits = tables[0].get("splits") if len(tables) == 1 and isinstance(tables[0], Mapping) else None
    rows: dict[str, int] = {}
    for split in splits if isinstance(splits, list) else ():
        number = split.get("num_examples") if isinstance(split, Mapping) else None
        if isinstance(number, int):
            rows[printable(str(split.get("name")))] = number
    return rows


def licence_in(tags: Iterable[str]) -> str | None:
    """The licence among a repository's tags, such as "license:mit"."""
    for tag in tags:
        if tag.startswith("license:"):
            return printable(tag.removeprefix("license:"))
    return None
