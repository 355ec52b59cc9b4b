"""Stages: keyed by what made them, resumed shard by shard."""

import gc
import json
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from rewardedit.files import join_arrays, replaced
from rewardedit.stages.stage import stage, variants


@dataclass(frozen=True)
class Settings:
    scorer: str = "clip_d"
    bins: tuple[float, ...] = (5.0, 10.0)


class Maker:
    """Writes a shard's number into it; counts what it makes and stops before the shard that it is told."""

    def __init__(self, stop: int | None = None) -> None:
        self.made: list[int] = []
        self.stop = stop

    def __call__(self, number: int, path: Path) -> None:
        path.mkdir()
        (path / "half").write_text("")
        if number == self.stop:
            raise KeyboardInterrupt
        np.save(path / "number.npy", np.array([number]))
        self.made.append(number)


def test_a_stage_is_made_once(tmp_path):
    first = Maker()
    again = Maker()
    paths = stage(tmp_path / "s", {"relabel": Settings()}, first, 3)
    assert [int(np.load(path / "number.npy")[0]) for path in paths] == [0, 1, 2]
    assert stage(tmp_path / "s", {"relabel": Settings()}, again, 3) == paths
    assert (first.made, again.made) == ([0, 1, 2], [])
    assert json.loads((tmp_path / "s" / "made_of.json").read_text())["relabel"] == {
        "scorer": "clip_d",
        "bins": [5.0, 10.0],
    }


def test_an_interrupted_stage_goes_on_from_its_whole_shards(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stage(tmp_path, {"a": 1}, Maker(stop=2), 4)
    assert not (tmp_path / "made_of.json").exists()
    rest = Maker()
    stage(tmp_path, {"a": 1}, rest, 4)
    assert rest.made == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "made_of.json",
        *(f"part-{i:05d}" for i in range(4)),
    ]


@pytest.mark.parametrize("stop", [None, 1])
def test_what_was_made_of_something_else_is_refused_and_both_settings_are_shown(stop, tmp_path):
    """The stage may be complete or interrupted."""
    try:
        stage(tmp_path, {"relabel": Settings(), "data": {"offset": 0}}, Maker(stop), 2)
    except KeyboardInterrupt:
        assert stop is not None
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(ValueError, match="made with other settings") as refused:
        stage(tmp_path, {"relabel": Settings("l1"), "data": {"offset": 4}}, Maker(), 2)
    assert 'relabel.scorer: "clip_d" there, "l1" here; data.offset: 0 there, 4 here' in str(refused.value)
    assert "remove" in str(refused.value)
    assert "bins" not in str(refused.value)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_another_number_of_shards_is_another_result(tmp_path):
    stage(tmp_path, {}, Maker(), 2)
    with pytest.raises(ValueError, match="shards: 2 there, 3 here"):
        stage(tmp_path, {}, Maker(), 3)


def test_files_of_unknown_origin_are_not_taken_for_results(tmp_path):
    (tmp_path / "part-00000").mkdir()
    with pytest.raises(ValueError, match="do not say what they were made of"):
        stage(tmp_path, {}, Maker())


def test_shards_are_joined_at_the_end_and_gone_afterwards(tmp_path):
    folder = tmp_path / "s"

    def finish(paths: list[Path]) -> None:
        assert not (folder / "made_of.json").exists()
        join_arrays([path / "number.npy" for path in paths], folder / "all.npy")

    for _ in range(2):
        stage(folder, {}, Maker(), 3, finish=finish)
        assert np.load(folder / "all.npy").tolist() == [0, 1, 2]
        assert sorted(path.name for path in folder.iterdir()) == ["all.npy", "made_of.json"]


def test_a_stage_killed_while_it_is_finished_is_finished_again(tmp_path):
    def killed(paths: list[Path]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage(tmp_path, {}, Maker(), 2, finish=killed)
    rest = Maker()
    stage(tmp_path, {}, rest, 2, finish=lambda paths: (tmp_path / "all").write_text(str(len(paths))) and None)
    assert rest.made == []
    assert (tmp_path / "all").read_text() == "2"


def test_what_is_replaced_is_whole_or_as_it_was(tmp_path):
    folder = tmp_path / "result"

    def write(name: str, killed: bool = False) -> None:
        with replaced(folder) as aside:
            aside.mkdir()
            (aside / name).write_text(name)
            if killed:
                raise KeyboardInterrupt

    write("a")
    with pytest.raises(KeyboardInterrupt):
        write("half", killed=True)
    assert [path.name for path in folder.iterdir()] == ["a"]
    write("b")  # over what was left half-made
    assert [path.name for path in folder.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_a_variant_is_made_again_where_it_was_made_of_other_settings(tmp_path):
    made = []

    def make(name: str, folder: Path) -> None:
        made.append(name)
        (folder / "pipeline").mkdir(parents=True, exist_ok=True)

    for weight in (1.0, 1.0, 2.0):
        found = variants(("first", "second"), tmp_path, "pipeline", {"reward": {"weight": weight}}, make)
    assert made == ["first", "second"] * 2
    assert found == {"first": tmp_path / "pipeline", "second": tmp_path / "variants" / "second" / "pipeline"}


def test_a_training_s_memory_is_free_for_the_next(tmp_path):
    """Its modules refer to one another, so that they stay until garbage is collected."""
    earlier = []

    class Ring:
        def __init__(self) -> None:
            self.itself = self

    def make(name: str, folder: Path) -> None:
        assert not any(ring() for ring in earlier)
        earlier.append(weakref.ref(Ring()))
        (folder / "pipeline").mkdir(parents=True)

    gc.disable()
    try:
        variants(("first", "second"), tmp_path, "pipeline", {}, make)
    finally:
        gc.enable()
    assert len(earlier) == 2
    assert not any(ring() for ring in earlier)
