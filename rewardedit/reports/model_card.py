"""The model card of a run: the trained model, its data, scorer and metrics, written from the run's own
files.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rewardedit import config as configs
from rewardedit.files import replaced
from rewardedit.models import HUB_NAME, WORLDS, is_hub_name
from rewardedit.reports.card_examples import Usage, examples
from rewardedit.reports.card_samples import copy_samples, remove_samples
from rewardedit.reports.published import published, without_local

# Folders in which trainers leave their result.
RESULTS = ("pipeline", "lora", "scorer", "dice", "detector", "segmenter", "vlm", "clip")
CARD = "README.md"
MODELS = ("base", "model", "checkpoint", "init_from")  # settings that name a base model
# Libraries of results; those of others: transformers.
LIBRARIES = {"captioner": "peft", "dice": "peft", "pipeline": "diffusers", "lora": "diffusers"}
EDITORS = {"pipeline": "finetune", "lora": "adapter"}  # how an editor relates to its base model
SET_ASIDE = ("usage", "differences", "settings", "change_outside")  # metrics that are no plain figures
PLAIN = re.compile(r"[\w-]*")  # names of trainers


def result_of(run: Path) -> Path:
    """The result folder of a run.

    Raises:
        ValueError: if there is none.
    """
    for name in RESULTS:
        folder = run / name
        if folder.is_dir():
            return folder
    raise ValueError(f"{run}: expected one of {', '.join(RESULTS)} in it; the run has not ended")


def write_card(
    run: Path, repo: str | None = None, license: str = "other", samples: bool | None = None
) -> Path:
    """Writes the card into the run's result, in the hub's format, and returns its path.

    Args:
        repo: the name under which the result is shared, for the examples; None: they name its folder.
        license: a licence identifier of the hub, such as "apache-2.0"; the base model or the data may
            require one.
        samples: copies held-out edits into the result and shows them; None: if all data are public.

    Raises:
        ValueError: if the run has no result, or its files cannot be read.
    """
    result = result_of(run)
    try:
        settings = configs.load_yaml(run / "config.yaml")
        environment = json.loads((run / "environment.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{run}: expected the files of a run ({error})") from error
    metrics_file = run / "metrics.json"
    metrics = json.loads(metrics_file.read_text()) if metrics_file.is_file() else {}
    shown = []
    if samples or (samples is None and is_public(settings)):
        shown = copy_samples(run, result)
    else:
        remove_samples(result)
    name = repo or _near(result)
    usage = Usage.of_result(result)
    text = card(settings, environment, metrics, result.name, name, license, usage, shown)
    with replaced(result / CARD) as aside:
        aside.write_text(text, encoding="utf-8")
    return result / CARD


def _near(result: Path) -> str:
    """The folder as commands here name it; without its parents if it lies outside of the working folder."""
    try:
        return result.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return f"{result.resolve().parent.name}/{result.name}"


def card(
    settings: dict[str, Any],
    environment: dict[str, Any],
    metrics: dict[str, Any],
    kind: str,
    repo: str,
    license: str,
    usage: Usage | None = None,
    samples: Sequence[tuple[str, dict[str, str]]] = (),
) -> str:
    """The text of a card. Values from the run's files are escaped, so that they are not markup, and hold no
    local path or endpoint.

    Args:
        samples: instructions with their images by label, as paths relative to the card.
    """
    settings = without_local(settings)
    trainer = str(environment.get("trainer", ""))
    if not PLAIN.fullmatch(trainer):
        raise ValueError(f"environment.json: trainer: expected a trainer's name; got {trainer[:80]!r}")
    made = "captioner" if (trainer, kind) == ("vlm_sft", "lora") else kind
    base = base_of(settings)
    blocks = examples(made, repo, base, trainer, usage or Usage(), (settings.get("data") or {}).get("size"))
    packages = ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items())
    where = f"{environment.get('device', '')}; Python {environment.get('python', '')}; {packages}."
    parts = [
        f"---\n{yaml.safe_dump(_head(settings, made, trainer, license), sort_keys=False)}---",
        f"# {escaped(str(settings.get('name', repo)))}",
        _origin(trainer, base, license),
        _samples(samples),
        "\n\n".join(["## Use", *(f"With {title}:\n\n{fenced(text, 'python')}" for title, text in blocks)]),
        f"## Data\n\n{_listed(data_of(settings)) or 'Its own: a generated world of drawn shapes.'}",
        _section("Scorer", _listed(scorers_of(settings))),
        _section("Result", _result(metrics)),
        _section("Figures", _figures(metrics)),
        f"## Settings\n\n{fenced(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), 'yaml')}",
        escaped(where),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(settings: dict[str, Any], made: str, trainer: str, license: str) -> dict[str, Any]:
    """The card's metadata, as the hub reads them."""
    head: dict[str, Any] = {
        "license": license,
        "library_name": LIBRARIES.get(made, "transformers"),
        "tags": ["image-editing", "rewardedit", trainer.replace("_", "-")],
    }
    if made in EDITORS:
        head["pipeline_tag"] = "image-to-image"
    base = base_of(settings)
    if base is not None and is_hub_name(base):
        head["base_model"] = base
        if made in EDITORS:
            head["base_model_relation"] = EDITORS[made]
    data = list(filter(is_hub_name, data_of(settings)))
    if data:
        head["datasets"] = data
    return head


def _origin(trainer: str, base: str | None, license: str) -> str:
    said = f"Made by `rewardedit train` with the trainer `{trainer}`" + (
        f" from {code(base)}." if base else "."
    )
    if license == "other":
        said += " Licence: not stated; that of the base model and of the data holds."
    return said


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _samples(samples: Sequence[tuple[str, dict[str, str]]]) -> str:
    """A table of held-out edits."""
    if not samples:
        return ""
    labels = list(samples[0][1])
    lines = [f"| {' | '.join(['instruction', *map(escaped, labels)])} |", "|---" * (len(labels) + 1) + "|"]
    for instruction, images in samples:
        cells = [f"![{escaped(label)}]({images[label]})" for label in labels]
        lines.append(f"| {' | '.join([escaped(instruction), *cells])} |")
    return "## Samples\n\nThe first held-out edits, not chosen.\n\n" + "\n".join(lines)


def _result(metrics: dict[str, Any]) -> str:
    """A table of base and result by every scorer, with intervals; "" without a comparison with a base."""
    lines = []
    for scorer, by_variant in metrics.get("differences", {}).items():
        base = by_variant.get("base")
        if base is not None:
            low, high = base["ci95"]
            difference = f"{base['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
            means = f"{base['mean_b']:.3f} | {base['mean_a']:.3f}"
            wins = f"{base['wins']} : {base['losses']}"
            lines.append(f"| {escaped(scorer)} | {means} | {difference} | {wins} |")
    if not lines:
        return ""
    head = "| scorer | base | result | difference and 95 % interval | wins : losses |\n|---|---|---|---|---|"
    return f"{metrics['n']} held-out edits; higher is better.\n\n" + "\n".join([head, *lines])


def _figures(metrics: dict[str, Any]) -> str:
    figures = flat({name: value for name, value in metrics.items() if name not in SET_ASIDE})
    rows = "\n".join(f"| {escaped(name)} | {value:.4g} |" for name, value in figures.items())
    return f"| | |\n|---|---|\n{rows}" if figures else ""


def is_public(settings: dict[str, Any]) -> bool:
    """True if all data of a run are data sets of the hub or of a generated world."""
    paths = data_of(settings) + data_of(settings.get("evaluate") or {})
    return all(map(is_hub_name, paths))


def base_of(settings: dict[str, Any]) -> str | None:
    """The model that was trained further; None for a model trained from scratch."""
    for name in MODELS:
        if isinstance(settings.get(name), str):
            return settings[name]
    return None


def data_of(settings: dict[str, Any]) -> list[str]:
    """Paths of the data sets that a run's settings name."""
    data = settings.get("data") or {}
    groups = [data] if "name" in data or "path" in data else list(data.values())
    paths: list[str] = []
    for group in groups:
        if isinstance(group, dict) and group.get("path") and group.get("name") not in WORLDS:
            paths.append(str(group["path"]))
    return paths


def scorers_of(settings: dict[str, Any]) -> list[str]:
    """The scorers that gave labels or gradients, as the recipe names them."""
    scorers = []
    for group in ("relabel", "reward"):
        scorer = (settings.get(group) or {}).get("scorer")
        if scorer is not None:
            scorers.append(scorer if isinstance(scorer, str) else json.dumps(scorer))
    return scorers


def flat(values: dict[str, Any], name: str = "") -> dict[str, float]:
    """The numbers of nested mappings by their dotted names."""
    numbers: dict[str, float] = {}
    for key, value in values.items():
        dotted = f"{name}.{key}" if name else str(key)
        if isinstance(value, dict):
            numbers |= flat(value, dotted)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[dotted] = float(value)
    return numbers


def escaped(text: str) -> str:
    """Escapes a text from data, so that it cannot end a table cell or begin another element or link."""
    return re.sub(r"([\\`*_{}\[\]<>|#!&~:@])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """The text as a code span that it cannot end."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def fenced(text: str, language: str) -> str:
    """The text as a code block that it cannot end: the fence is longer than any run of backticks in it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _listed(texts: list[str]) -> str:
    return "\n".join(f"- {escaped(text)}" for text in texts)


def push(
    run: Path, repo: str, license: str = "other", private: bool = False, samples: bool | None = None
) -> str:
    """Writes the card and uploads the run's result to the hub; returns its address.

    Raises:
        ValueError: if the name is not a valid hub name, the run has no result, the hub refuses it or is not
            reached, or `private` is requested of a repository that is already public.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, LocalTokenNotFoundError

    if not HUB_NAME.fullmatch(repo):
        raise ValueError(f"repository {repo!r}: expected a name such as me/my-editor")
    write_card(run, repo, license, samples)
    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        if private and not api.repo_info(repo).private:
            raise ValueError(f"{repo}: is there already, and everybody sees it; take another name")
        with published(result_of(run)) as folder:
            info = api.upload_folder(repo_id=repo, folder_path=str(folder))
    except (HTTPError, LocalTokenNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"{repo}: cannot be uploaded ({first}); hf auth login gives the key") from error
    return str(info)
