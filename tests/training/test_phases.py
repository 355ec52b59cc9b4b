"""Recipes of several phases or parts: what each is made of, in order, kept, resumed and refused."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from rewardedit.cli import load_recipe, main, recipe_names
from rewardedit.cli.checks import HubCache
from rewardedit.cli.needs import missing_requirements, references, source_of
from rewardedit.cli.recipes import recipe_folders, run_name
from rewardedit.config import to_dict
from rewardedit.models import NAMES, RECIPES
from rewardedit.training import phases
from rewardedit.training.run_folder import trainer_of

EMPTY = HubCache(Path("none"), Path("none"), ())
OWN = """
trainer: shapes_vlm
samples: 14
evaluate_n: 2
width: 32
layers: 1
train: {max_steps: 1, batch_size: 2, lr_warmup_steps: 0, mixed_precision: "no", checkpoint_every: 1}
phases:
  - {name: first, tasks: [caption]}
  - {name: second, init_from: phase-1/vlm, tasks: [choice], train.lr: 5e-4}
  - {init_from: phase-2/vlm, layers: 2, train.seed: 3}
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN)
    return tmp_path / "runs" / "own"


def settings(recipe: str, *words: str) -> dict:
    """Settings of each phase or part by its name."""
    config = load_recipe(recipe, words)[1]
    return {key: phase.settings for key, phase in config.trainings().items()}


def stamps(run: Path) -> dict[str, int]:
    """Times at which the phases' results were written."""
    return {path.parent.parent.name: path.stat().st_mtime_ns for path in run.glob("*/vlm/config.json")}


def test_a_phase_overrides_what_the_recipe_says_and_words_override_all(own):
    first, second, third = settings("own.yaml").values()
    assert (first.name, second.name, third.name) == ("first", "second", "own-phase-3")
    assert (first.tasks, second.tasks) == (("caption",), ("choice",))
    assert (first.train.lr, second.train.lr) == (1e-3, 5e-4)
    assert second.train.batch_size == first.train.batch_size == 2, "a dotted key replaces no group"
    found = settings("own.yaml", "train.lr=0.1", "phase-3.train.lr=0.2", "phase-1.width=48", "name=other")
    assert [phase.train.lr for phase in found.values()] == [0.1, 0.1, 0.2]
    assert [phase.width for phase in found.values()] == [48, 32, 32]
    assert load_recipe("own.yaml", ["name=other"])[1].name == "other"


def test_phases_follow_one_another_and_a_finished_one_is_not_repeated(own, capsys):
    assert main(["train", "own.yaml"]) == 0
    assert trainer_of(own) == "phases"
    assert trainer_of(own / "phase-2") == "shapes_vlm"
    metrics = json.loads((own / "metrics.json").read_text())
    assert set(metrics) == {"phase-1", "phase-2", "phase-3"}
    assert (
        yaml.safe_load((own / "phase-2" / "config.yaml").read_text())["init_from"] == "runs/own/phase-1/vlm"
    )
    made = stamps(own)
    assert len(made) == 3

    # Killed in the third phase: the first two stay, whichever way the run is named.
    (own / "phase-3" / "made_of.json").unlink()
    shutil.rmtree(own / "phase-3" / "vlm")
    assert main(["train", str(own), "--resume"]) == 0
    again = stamps(own)
    assert {key: again[key] for key in ("phase-1", "phase-2")} == {
        key: made[key] for key in ("phase-1", "phase-2")
    }
    assert again["phase-3"] != made["phase-3"]
    assert main(["train", "own.yaml", "--resume"]) == 0
    assert stamps(own) == again

    # Another learning rate is another run; more steps are not, and what was made of the fewer is refused.
    assert main(["train", "own.yaml", "--resume", "phase-2.train.lr=0.1"]) == 2
    assert "phases.phase-2.settings.train.lr: 0.0005 there, 0.1 here" in capsys.readouterr().err
    assert main(["train", "own.yaml", "--resume", "phase-2.train.max_steps=2"]) == 2
    said = capsys.readouterr().err
    assert (
        "runs/own/phase-3 was made with other settings: phase-2.settings.train.max_steps: 1 there, 2 here"
        in said
    )
    assert stamps(own)["phase-1"] == made["phase-1"]
    words = ["train", "own.yaml", "--overwrite", "--dry-run"]
    assert main(words) == 0, "results of the earlier run are no settings"


def test_a_plan_says_what_is_known_before_earlier_phases_have_run(own, capsys):
    assert main(["train", "own.yaml", "--dry-run"]) == 0
    plan = capsys.readouterr().out.splitlines()
    assert plan[0] == "phase-1: first"
    assert plan[1].endswith("14 samples, 1 steps")
    assert plan[2:4] == ["phase-2: second", "  what depends on the results of phase-1 is known after them"]
    assert main(["train", "own.yaml", "clip=nowhere", "--dry-run"]) == 2
    assert "model nowhere: no such file or folder" in capsys.readouterr().err


def test_the_first_phases_may_be_left_out_where_another_model_is_named(own, capsys):
    assert main(["train", "own.yaml", "first_phase=2", "--dry-run"]) == 2
    error = "phase-2: takes the result of phase-1, which is no earlier phase of this run; name another model"
    assert error in capsys.readouterr().err
    found = settings("own.yaml", "first_phase=2", "phase-2.init_from=shapes/vlm")
    assert list(found) == ["phase-2", "phase-3"]
    assert (found["phase-2"].init_from, found["phase-3"].init_from) == ("shapes/vlm", "phase-2/vlm")
    with pytest.raises(ValueError, match="first_phase: expected 1 to 3; got 4"):
        settings("own.yaml", "first_phase=4")


def test_a_phase_may_name_another_recipe(own):
    Path("chain.yaml").write_text(
        "phases:\n- {recipe: quickstart, train.max_steps: 3}\n"
        "- {recipe: shapes/refl, base: phase-1/pipeline, reward.scorer: {adiee: {checkpoint: phase-1/x}}}\n"
    )
    first, second = settings("chain.yaml").values()
    assert (first.name, first.train.max_steps, first.data.limit) == ("quickstart", 3, 8960)
    assert (second.name, second.base) == ("shapes-refl", "phase-1/pipeline")
    resolved = phases.resolved(second, Path("runs/chain"))
    assert resolved.base == "runs/chain/phase-1/pipeline"
    assert resolved.reward.scorer == {"adiee": {"checkpoint": "runs/chain/phase-1/x"}}
    module, config = load_recipe("chain.yaml", [])
    assert phases.taken(second) == {"phase-1"}
    assert not missing_requirements(config, source_of(module, config), EMPTY, recipe_names())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "phases: [{recipe: shapes/vlm}]",
            "phase-1: shapes/vlm has phases itself; name a recipe of one training",
        ),
        ("phases: []", "phases: expected a list of phases, or parts by name; got []"),
        ("phases: [3]", "phase-1: expected a group of settings; got 3"),
        ("phases: [{}]", "phase-1: trainer: expected one of"),
        (
            "trainer: shapes_vlm\nphases: [{widht: 3}]",
            "unknown setting phase-1.widht; did you mean phase-1.width?",
        ),
        (
            "trainer: shapes_vlm\nphases: [{init_from: phase-2/vlm}, {}]",
            "phase-1: takes the result of phase-2",
        ),
        ("trainer: shapes_vlm\nparts: {../x: {}}", "parts: expected a plain name"),
    ],
)
def test_phases_that_cannot_be_are_refused(text, message, own):
    Path("own.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        load_recipe("own.yaml", [])


def test_one_part_is_a_recipe_too():
    _, alone = load_recipe("shapes/adiee-data/damaged", ["data.shapes.limit=7"])
    whole = settings("shapes/adiee-data")["damaged"]
    assert alone.name == "shapes-adiee-data-damaged"
    changed = {key for key, value in to_dict(alone).items() if value != to_dict(whole)[key]}
    assert changed == {"data"}
    with pytest.raises(
        ValueError, match="expected one of edited, more, damaged, compared, moved; got 'mvoed'"
    ):
        load_recipe("shapes/adiee-data/mvoed", [])
    with pytest.raises(ValueError, match="shapes/refl/x: expected one of no phases; got 'x'"):
        load_recipe("shapes/refl/x", [])


def test_the_word_groups_are_the_same_in_all_parts():
    rules = {key: part.rules for key, part in settings("shapes/adiee-data").items()}
    groups = {key: own.negatives.word_groups for key, own in rules.items()}
    assert groups["compared"] == groups["damaged"]
    assert set(groups["moved"]) < set(groups["damaged"])


def test_settings_of_all_phases_are_listed(own, capsys):
    with pytest.raises(SystemExit):
        main(["train", "own.yaml", "--help"])
    listed = capsys.readouterr().out
    assert "settings of own.yaml, phase-1: first (trainer vlm)" in listed
    assert "* phase-2.init_from=phase-1/vlm" in listed
    assert listed.count("match_size=8") == 1, "only what differs is listed again"


def test_the_offline_world_s_order_has_each_recipe_after_those_that_it_needs():
    folder = recipe_folders()[1]
    order = (folder / "order.txt").read_text().split()
    assert sorted(order) == sorted(path.stem for path in folder.glob("*.yaml"))
    made: set[str] = set()
    for recipe in (f"shapes/{name}" for name in order):
        found = {thing.name for thing in references(load_recipe(recipe, [])[1])}
        models = found & NAMES.keys()
        runs = {Path(name).parts[1] for name in found if name.startswith("runs/")}
        assert models | runs <= made, f"{recipe} needs {sorted((models | runs) - made)}"
        made |= {run_name(recipe), *(name for name in NAMES if RECIPES.get(name, name) == recipe)}
    assert made > NAMES.keys()


def test_make_world_runs_that_order():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "$$(cat rewardedit/shapes/recipes/order.txt)" in makefile
