import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from rewardedit.cli.recipes import TRAINERS, load_recipe, read_recipe, recipe_names
from rewardedit.cli.settings import describe, settings_of
from rewardedit.config import build, dump, load_yaml, override, parse_value, require_counts, to_dict
from rewardedit.training.run import start


@dataclass(frozen=True)
class Inner:
    lr: float = 1e-3  # of both classes
    steps: int = 10  # of both classes
    mode: Literal["fast", "slow", "no"] = "fast"
    careful: bool = False


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    grid: tuple[float, ...] = ()
    limit: int | None = None
    ends: tuple[int, int] = (0, 1)


def test_numbers_are_what_people_mean():
    assert parse_value("1e-4") == 1e-4
    assert isinstance(parse_value("1e-4"), float)
    assert parse_value("3") == 3
    assert isinstance(parse_value("3"), int)
    assert parse_value("null") is None
    assert parse_value("[1, 2.5]") == [1, 2.5]
    assert parse_value("v1e4x") == "v1e4x"
    assert [parse_value(text) for text in ("no", "on", "true", "False")] == ["no", "on", True, False]


def test_dotted_words_lie_over_a_recipe():
    values = {"name": "a", "inner": {"lr": 0.1}}
    config = build(Outer, override(values, ["inner.lr=1e-4", "inner.steps=20", "grid=[1, 2]", "limit=5"]))
    assert config == Outer("a", Inner(1e-4, 20), (1.0, 2.0), 5)
    assert values == {"name": "a", "inner": {"lr": 0.1}}


def test_dotted_words_reach_into_the_short_string_of_a_scorer():
    values = {"relabel": {"scorer": "clip_d:0.7,l1:0.3"}, "reward": {"scorer": "vifi_clip"}}
    words = [
        "relabel.scorer.l1.region=outside",
        "reward.scorer.vifi_clip.checkpoint=a/b",
        "monitor.held_out.ssim.against=target",
    ]
    assert override(values, words) == {
        "relabel": {"scorer": {"clip_d": {"weight": 0.7}, "l1": {"weight": 0.3, "region": "outside"}}},
        "reward": {"scorer": {"vifi_clip": {"checkpoint": "a/b"}}},
        "monitor": {"held_out": {"ssim": {"against": "target"}}},
    }
    with pytest.raises(ValueError, match=r"relabel\.scorer\.ssim\.against: scorer is a value"):
        override(values, ["relabel.scorer.ssim.against=target"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inner.stesp=3"], "unknown setting inner.stesp; did you mean inner.steps?"),
        (["inner.mode=fats"], "inner.mode: expected one of fast, slow, no; got 'fats'; did you mean fast?"),
        (["inner.steps=many"], "inner.steps: expected a whole number; got 'many'"),
        (["inner.steps=true"], "inner.steps: expected a whole number; got true"),
        (["inner.careful=yes"], "inner.careful: expected true or false; got 'yes'"),
        (["ends=1"], "ends: expected 2 values; got [1]"),
        (["ends=[0, 1, 2]"], "ends: expected 2 values; got [0, 1, 2]"),
        (["inner=3"], "inner: expected a group of settings; got 3"),
        (["name.b=3"], "name.b: name is a value, not a group of settings"),
        (["name={a} b"], "'{a} b': not a value that YAML can read; a text with braces"),
        (["oops"], "'oops': expected key=value"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(Outer, override({"name": "a"}, words))


def test_a_required_setting_is_asked_for():
    with pytest.raises(ValueError, match="setting name is required"):
        build(Outer, {})


def test_dumped_configs_load_again(tmp_path):
    config = Outer("a", Inner(mode="no", careful=True), (1.5,), None)
    assert build(Outer, override({"name": "a"}, ["inner.mode=no"])).inner.mode == "no"
    (tmp_path / "c.yaml").write_text(dump(config))
    assert build(Outer, load_yaml(tmp_path / "c.yaml")) == config
    with pytest.raises(ValueError, match="cannot be read"):
        load_yaml(tmp_path / "d.yaml")
    (tmp_path / "e.yaml").write_text("a: [1")
    with pytest.raises(ValueError, match="not YAML"):
        load_yaml(tmp_path / "e.yaml")


@dataclass(frozen=True)
class Commented(Inner):
    """More of it, in two lines.

    The second.
    """

    steps: int = 20
    text: str = "λ # no comment"  # λ of the loss; None: as ever
    # In two lines
    # above the field.
    long: tuple[float, ...] = (1.0,)
    silent: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Top:
    name: str
    first: Commented = field(default_factory=Commented)
    other: Commented | None = None  # where one is wanted


def test_settings_say_what_the_comments_of_their_fields_say():
    found = {s.name: s for s in settings_of(Top, Top("a", Commented(text="b")))}
    assert list(found)[:4] == ["name", "first", "first.lr", "first.steps"]
    assert found["first"].help == "More of it, in two lines"
    assert found["other"].help == "where one is wanted"
    assert (found["first.text"].value, found["first.text"].help) == ("b", "λ of the loss; null: as ever")
    assert found["first.long"].help == "In two lines above the field."
    assert found["first.steps"].help == found["first.lr"].help == "of both classes"
    assert found["first.silent"].help == ""
    assert {s.name: s.type for s in settings_of(Top)} == {
        "name": "text",
        "first": "group",
        "other": "group or null",
        **{f"{group}.lr": "float" for group in ("first", "other")},
        **{f"{group}.steps": "int" for group in ("first", "other")},
        **{f"{group}.mode": "fast | slow | no" for group in ("first", "other")},
        **{f"{group}.careful": "true | false" for group in ("first", "other")},
        **{f"{group}.text": "text" for group in ("first", "other")},
        **{f"{group}.long": "list of float" for group in ("first", "other")},
        **{f"{group}.silent": "mapping to float" for group in ("first", "other")},
    }
    assert found["other"].value is None
    assert found["other.steps"].value == 20


def test_settings_are_written_as_they_can_be_typed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = describe(Top, Top("a b", Commented(mode="no")), {"first.lr"}).splitlines()
    words = [line[2:].split("  ")[0] for line in lines]
    assert [word for word in words if "=" not in word] == ["first"]
    assert (
        build(
            Top, override({}, [word for word in words if "=" in word and not word.startswith("other.")])
        ).first.mode
        == "no"
    )
    assert [line for line in lines if line.startswith("*")] == [
        "* first.lr=0.001                    of both classes (float)"
    ]


def test_what_looks_like_a_time_is_a_text_as_in_yaml_1_2():
    for text in ("2026-11-26", "1:30", "1:30.5", "4:3", "1_000", "1_000.5"):
        assert parse_value(text) == text
    assert [parse_value(text) for text in ("3", "-4", "0", "010", "1e-4", "1.5", "[1, 2]")] == [
        3, -4, 0, 10, 1e-4, 1.5, [1, 2],
    ]  # fmt: skip
    assert isinstance(parse_value("3"), int)
    assert parse_value("[.inf, -.inf]") == [math.inf, -math.inf]
    assert math.isnan(parse_value(".nan"))


def whole_numbers(values: Any, setting: str = "") -> Iterator[str]:
    """The dotted names of all whole numbers in settings."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from whole_numbers(value, f"{setting}.{key}" if setting else key)
    elif isinstance(values, int) and not isinstance(values, bool):
        yield setting


@pytest.mark.parametrize("trainer", TRAINERS)
def test_no_count_of_any_trainer_is_below_zero(trainer):
    names = [name for name in recipe_names() if read_recipe(name, []).get("trainer") == trainer]
    names += [
        f"{name}/phase-1" for name in ("shapes/editor", "shapes/vlm") if trainer == name.replace("/", "_")
    ]
    _, config = load_recipe(names[0], [])
    found = list(whole_numbers(to_dict(config)))
    assert found
    for setting in found:
        with pytest.raises(ValueError, match=setting.rpartition(".")[2]):
            load_recipe(names[0], [f"{setting}=-3"])


def test_a_count_is_refused_wherever_settings_come_from():
    @dataclass(frozen=True)
    class Own:
        """Settings of a trainer that is added tomorrow."""

        crops: int = 4
        skipped: int = 0
        seed: int = 42
        sizes: tuple[int, ...] = (1, 2)
        known: bool = False
        more: dict[str, Any] = field(default_factory=dict)

    for right in ({}, {"skipped": 0, "seed": 0, "crops": 1}):
        require_counts(Own(**right))
    for wrong, error in (
        ({"crops": 0}, "crops: expected at least 1; got 0"),
        ({"skipped": -1}, "skipped: expected at least 0; got -1"),
        ({"seed": -5}, "seed: expected at least 0; got -5"),
        ({"sizes": (3, -7)}, "sizes: expected at least 1; got -7"),
        ({"more": {"a": Own(crops=-2)}}, "more.crops: expected at least 1; got -2"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
            require_counts(Own(**wrong))
        with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
            start(Path("unused"), Own(**wrong))


@dataclass(frozen=True)
class Pace:
    rank: int | None = None
    steps: int = 5


@dataclass(frozen=True)
class Ranked:
    pace: Pace = field(default_factory=lambda: Pace(rank=32))


@dataclass(frozen=True)
class Preset:
    """A preset fills in what is None."""

    preset: str = "ours"
    share: float | None = None

    def __post_init__(self) -> None:
        if self.share is None:
            object.__setattr__(self, "share", {"ours": 0.5, "paper": 0.0}[self.preset])


@dataclass(frozen=True)
class WithPreset:
    rules: Preset = field(default_factory=Preset)


def test_another_preset_fills_in_its_own_values():
    assert build(WithPreset, {"rules": {"preset": "paper"}}).rules.share == 0.0


def test_a_group_given_in_part_keeps_its_other_defaults():
    assert build(Ranked, {"pace": {"steps": 2}}) == Ranked(Pace(32, 2))
    assert build(Ranked, {"pace": {"rank": None}}).pace.rank is None
