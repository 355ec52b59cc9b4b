import pytest

from rewardedit.relabel import RelabelConfig
from rewardedit.scorer_spec import Term, as_mapping, full_name, read_spec, resolve_spec, spec_name
from rewardedit.stages.stage import plain
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.reward import RewardConfig


@pytest.mark.parametrize(
    ("spec", "terms"),
    [
        ("clip_d", {"clip_d": Term(None, {})}),
        ("my.module:Mine", {"my.module:Mine": Term(None, {})}),
        ("my.module:Mine:2", {"my.module:Mine": Term(2.0, {})}),
        (" clip_d:0.7, l1:0.3", {"clip_d": Term(0.7, {}), "l1": Term(0.3, {})}),
        ({"clip_d": {}}, {"clip_d": Term(None, {})}),
        ({"clip_d": {"weight": 1, "checkpoint": "a/b"}}, {"clip_d": Term(1.0, {"checkpoint": "a/b"})}),
    ],
)
def test_specs_are_read(spec, terms):
    assert read_spec(spec) == terms
    assert read_spec(as_mapping(spec)) == terms
    assert read_spec(resolve_spec(spec)) == terms


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("clip_d:0.7,l1", "expected a sum such as"),
        ("clip_d:0.7,clip_d:0.3", "each scorer once"),
        ({}, "expected a sum such as"),
        ({"clip_d": {}, "l1": {}}, "with its weight"),
        ({"clip_d": 0.7}, r"scorer clip_d: expected its weight and options, such as {weight: 0.7}; got 0.7"),
        ({"clip_d": {"weight": "much"}}, "scorer clip_d: weight: expected a number; got 'much'"),
        ({"clip_d": {"weight": True}}, "weight: expected a number"),
    ],
)
def test_malformed_specs_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        read_spec(spec)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("clip_d:0.7,l1:0.3", "clip_d:0.7,l1:0.3"),
        ({"l1": {"region": "outside"}}, "l1(region=outside)"),
        (
            {"l1": {"weight": 0.3, "region": "outside"}, "clip_d": {"weight": 1}},
            "l1(region=outside):0.3,clip_d:1",
        ),
    ],
)
def test_a_full_name_says_the_options(spec, name):
    assert full_name(spec) == name


def test_two_ways_of_writing_one_scorer_are_the_same_stage():
    short = "clip_d:0.7,l1:0.3"
    mapping = {"clip_d": {"weight": 0.7}, "l1": {"weight": 0.3}}
    assert resolve_spec(mapping) == short
    assert resolve_spec({"l1": {}}) == "l1"
    with_options = {"clip_d": {"weight": 0.7, "checkpoint": "a"}, "l1": {"weight": 0.3}}
    assert resolve_spec(with_options) == with_options
    assert spec_name(with_options) == short
    for config in (
        lambda s: RelabelConfig(s),
        lambda s: RewardConfig(s),
        lambda s: MonitorConfig(held_out=s),
    ):
        assert plain({"made": config(short)}) == plain({"made": config(mapping)})
        assert plain({"made": config(short)}) != plain({"made": config(with_options)})
