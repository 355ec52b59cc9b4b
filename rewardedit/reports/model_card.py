"""The model card of a run: the trained model, its data, scorer and metrics, written from the run's own
files.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from rewardedit import config as configs
from rewardedit.files import replaced
from rewardedit.reports.published import HUB_NAME, is_of_the_hub, published, without_local

# Folders in which trainers leave their result, and the code that loads each.
RESULTS = ("pipeline", "lora", "scorer", "detector", "segmenter", "vlm", "clip")
CARD = "README.md"
MODELS = ("base", "model", "checkpoint", "start")  # settings that name a base model
EXAMPLES = {
    "pipeline": "from rewardedit import load_editor\n\neditor = load_editor({repo})\n"
    'edited = editor(image, ["make the circle white"], [0])',
    "lora": "from rewardedit import load_editor\n\neditor = load_editor({repo})\n"
    'edited = editor(image, ["make the circle white"], [0])',
    "scorer": "from rewardedit import load_scorer\n\nscorer = load_scorer({scorer}, checkpoint={repo})\n"
    "scores = scorer(batch)",
    "captioner": "from rewardedit.language.vlm import load_vlm\n\n"
    "captioner = load_vlm({base}, adapter={repo})",
}  # with the names as Python writes them
LIBRARIES = {"captioner": "peft", "pipeline": "diffusers", "lora": "diffusers"}  # others: transformers
SCORERS = {"vifi_clip": "vifi_clip", "adiee_scorer": "adiee"}
PLAIN = re.compile(r"[\w-]*")  # names of trainers


def result_of(run: Path) -> Path:
    """The result folder of a run.

    Raises:
        ValueError: if there is none.
    """
    found = [run / name for name in RESULTS if (run / name).is_dir()]
    if not found:
        raise ValueError(f"{run}: expected one of {', '.join(RESULTS)} in it; the run has not ended")
    return found[0]


def write_card(run: Path, repo: str, license: str = "other") -> Path:
    """Writes the card into the run's result, in the hub's format, and returns its path.

    Args:
        repo: the name under which the result is shared, for the example.
        license: a licence identifier of the hub, such as "apache-2.0"; the base model or the data may
            require one.

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
    metrics.pop("usage", None)  # endpoint usage says nothing about the result
    path = result / CARD
    with replaced(path) as aside:
        aside.write_text(card(settings, environment, metrics, result.name, repo, license), encoding="utf-8")
    return path


def card(
    settings: dict[str, Any],
    environment: dict[str, Any],
    metrics: dict[str, Any],
    kind: str,
    repo: str,
    license: str,
) -> str:
    """The text of a card. Values from the run's files are escaped, so that they are not markup, and hold no
    local path or endpoint.
    """
    settings = without_local(settings)
    trainer = str(environment.get("trainer", ""))
    if not PLAIN.fullmatch(trainer):
        raise ValueError(f"environment.json: trainer: expected a trainer's name; got {trainer[:80]!r}")
    made = trainer if trainer in EXAMPLES else kind
    head: dict[str, Any] = {
        "license": license,
        "library_name": LIBRARIES.get(made, "transformers"),
        "tags": ["image-editing", "rewardedit", trainer.replace("_", "-")],
    }
    base = base_of(settings)
    if base is not None and is_of_the_hub(base):
        head["base_model"] = base
    data = [path for path in data_of(settings) if is_of_the_hub(path)]
    if data:
        head["datasets"] = data
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {escaped(str(settings.get('name', repo)))}",
        f"Made by `rewardedit train` with the trainer `{trainer}`"
        + (f" from {code(base)}." if base else ".")
        + (
            ""
            if license != "other"
            else " Licence: not stated; that of the base model and of the data holds."
        ),
        f"## Data\n\n{_listed(data_of(settings)) or 'Its own: the offline world of shapes.'}",
    ]
    judges = scorers_of(settings)
    if judges:
        parts.append(f"## Scorer\n\n{_listed(judges)}")
    figures = flat(metrics)
    if figures:
        rows = "\n".join(f"| {escaped(name)} | {value:.4g} |" for name, value in figures.items())
        parts.append(f"## Figures\n\n| | |\n|---|---|\n{rows}")
    example = EXAMPLES.get(made)
    if example is not None:
        names = {"repo": repo, "base": base, "scorer": SCORERS.get(trainer, "vifi_clip")}
        text = example.format(**{name: json.dumps(value) for name, value in names.items()})
        parts.append(f"## Use\n\n{fenced(text, 'python')}")
    dumped = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    packages = ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items())
    parts.append(f"## Settings\n\n{fenced(dumped, 'yaml')}")
    where = f"{environment.get('device', '')}; Python {environment.get('python', '')}; {packages}."
    parts.append(escaped(where))
    return "\n\n".join(parts) + "\n"


def base_of(settings: dict[str, Any]) -> str | None:
    """The model that was trained further; None for a model trained from scratch."""
    return next((str(settings[name]) for name in MODELS if isinstance(settings.get(name), str)), None)


def data_of(settings: dict[str, Any]) -> list[str]:
    """Paths of the data sets that a run's settings name."""
    data = settings.get("data") or {}
    groups = [data] if "name" in data or "path" in data else list(data.values())
    named = [group for group in groups if isinstance(group, dict)]
    return [str(group["path"]) for group in named if group.get("path") and group.get("name") != "shapes"]


def scorers_of(settings: dict[str, Any]) -> list[str]:
    """The scorers that gave labels or gradients, as the recipe names them."""
    found = []
    for group in ("relabel", "reward"):
        scorer = (settings.get(group) or {}).get("scorer")
        if scorer is not None:
            found.append(scorer if isinstance(scorer, str) else json.dumps(scorer))
    return found


def flat(values: dict[str, Any], name: str = "") -> dict[str, float]:
    """The numbers of nested mappings by their dotted names."""
    found: dict[str, float] = {}
    for key, value in values.items():
        dotted = f"{name}.{key}" if name else str(key)
        if isinstance(value, dict):
            found |= flat(value, dotted)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[dotted] = float(value)
    return found


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


def push(run: Path, repo: str, license: str = "other", private: bool = False) -> str:
    """Writes the card and uploads the run's result to the hub; returns its address.

    Raises:
        ValueError: if the name is not a valid hub name, the run has no result, the hub refuses it or is not
            reached, or `private` is requested of a repository that is already public.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, LocalTokenNotFoundError

    if not HUB_NAME.fullmatch(repo):
        raise ValueError(f"repository {repo!r}: expected a name such as me/my-editor")
    write_card(run, repo, license)
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
