"""Stages under what befalls a machine: a process that sleeps, another that takes its work, a power cut,
and files that are damaged or made up.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rewardedit import RewardPrompt, load_editor, load_scorer
from rewardedit.batch import EditSample
from rewardedit.cli.checks import incomplete
from rewardedit.data import DataConfig, open_rows
from rewardedit.data.labelled import made_from
from rewardedit.files import create, join_arrays, put_in_place, read_log, replaced, write_json
from rewardedit.instructions.llm import LlmParser
from rewardedit.instructions.parsed import Unparsed
from rewardedit.language.usage import read_usage
from rewardedit.relabel import read_scale
from rewardedit.reports.report import Report
from rewardedit.scorers.adiee_head import AdieeSettings
from rewardedit.scorers.bpm.bpm import Calibration
from rewardedit.scorers.vlm_judge_prompts import Example
from rewardedit.scoring import read_records, score_to_parquet, usage_of, write_records
from rewardedit.stages import executors, leases
from rewardedit.stages.executors import Shards, make_shard
from rewardedit.stages.leases import Leases
from rewardedit.stages.stage import is_made, mark_made, stage
from rewardedit.synthesis.outputs import Output, read_outputs, write_outputs
from rewardedit.untrusted import whole_text

DEEP = b"[" * 100_000
DAMAGED = (b"", b"{", b"\x00" * 40, b"\xff\xfe\xfa", DEEP, b"[1, 2]", b'"text"', b"3", b'{"pid": NaN}')


@pytest.fixture
def clock(monkeypatch) -> None:
    """Seconds, half a minute of which pass when somebody naps."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += 30 + seconds

    fake = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(leases, "time", fake)
    monkeypatch.setattr(executors, "time", fake)


def write(number: int, path: Path) -> None:
    path.write_text(f"shard {number}")


def write_folder(number: int, path: Path) -> None:
    path.mkdir()
    np.save(path / "rows.npy", np.full(4, number))
    (path / "rows.json").write_text(str(number))


def joined(folder: Path) -> Callable[[list[Path]], None]:
    def finish(paths: list[Path]) -> None:
        write_json(folder.with_name("all.json"), [path.read_text() for path in paths])

    return finish


class Sleeper:
    """A maker that sleeps for so long in its first shard that another process ends the stage."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        self.meanwhile = meanwhile
        self.made: list[int] = []

    def __call__(self, number: int, path: Path) -> None:
        self.made.append(number)
        if len(self.made) == 1:
            self.meanwhile()
        write(number, path)


@pytest.mark.parametrize("removed", [False, True])
def test_a_process_that_slept_until_others_had_ended_its_stage_makes_nothing_again(removed, tmp_path, clock):
    folder = tmp_path / "s"

    def others() -> None:
        stage(folder, {"of": 1}, write, 3, finish=joined(folder))
        if removed:
            shutil.rmtree(folder)

    slept = Sleeper(others)
    stage(folder, {"of": 1}, slept, 3, finish=joined(folder))
    assert slept.made == [0]
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["all.json"] if removed else ["all.json", "s", "made_of.json"]
    )
    stage(folder, {"of": 1}, write, 3, finish=joined(folder))  # the same command is not refused


def test_a_process_that_slept_while_it_joined_shards_finds_them_joined(tmp_path, clock):
    folder = tmp_path / "s"
    joins = []

    def finish(paths: list[Path]) -> None:
        joins.append(len(joins))
        if len(joins) == 1:
            stage(folder, {}, write, 2, finish=finish)
        joined(folder)(paths)

    stage(folder, {}, write, 2, finish=finish)
    assert joins == [0, 1]
    assert [path.name for path in folder.iterdir()] == ["made_of.json"]
    assert json.loads((tmp_path / "all.json").read_text()) == ["shard 0", "shard 1"]


def test_a_process_that_slept_until_another_command_had_its_folder_is_refused(tmp_path, clock):
    folder = tmp_path / "s"

    def others() -> None:
        shutil.rmtree(folder)
        stage(folder, {"scorer": "l1"}, write, 3)

    slept = Sleeper(others)
    with pytest.raises(ValueError, match='scorer: "l1" there, "ssim" here'):
        stage(folder, {"scorer": "ssim"}, slept, 3)
    assert (folder / "part-00000").read_text() == "shard 0"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_scores_that_others_finished_meanwhile_are_not_asked_for_again(tmp_path, clock):
    out = tmp_path / "scores.parquet"
    rows = open_rows(DataConfig(name="shapes", limit=3, size=32))
    own = load_scorer("l1")
    asked: list[int] = []

    def load() -> dict[str, Any]:
        asked.append(1)
        if len(asked) == 1:  # and sleeps
            score_to_parquet(out, {"scorer": "l1"}, rows, load=lambda: {"l1": own}, size=32)
        return {"l1": own}

    score_to_parquet(out, {"scorer": "l1"}, rows, load=load, size=32)
    assert len(asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert len(read_records(out)) == 3


def wait_for_the_heart(folder: Path) -> None:
    """Until claims' hearts have stopped, or the folder is there again."""
    while any("_keep" in thread.name for thread in threading.enumerate()) and not folder.exists():
        time.sleep(0.001)


def test_a_heart_beats_no_more_where_the_folder_is_gone_and_makes_none(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    own = Leases(heartbeat=0.001)
    with own.claim(folder / "a") as granted:
        assert granted
        assert own.is_held(folder / "a")
        shutil.rmtree(folder)
        wait_for_the_heart(folder)
        assert not own.is_held(folder / "a")
    assert list(tmp_path.iterdir()) == []


def test_who_was_taken_for_dead_leaves_the_claim_to_who_took_it(tmp_path):
    own = Leases(heartbeat=0.001)
    file = tmp_path / ".a.claim"
    with own.claim(tmp_path / "a"):
        # as another takes it
        write_json(file, {"machine": "another", "pid": 1, "token": "theirs", "beats": 0})
        wait_for_the_heart(tmp_path / "nothing")
        assert not own.is_held(tmp_path / "a")
        made = Shards(write, [tmp_path / "a"], range(1), lambda: False)
        make_shard(made, 0, lambda: own.is_held(tmp_path / "a"))
    assert json.loads(file.read_text())["token"] == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_claim_that_was_taken_from_a_dead_process_stays_with_who_took_it(tmp_path):
    file = tmp_path / ".a.claim"
    owner = {"machine": leases.machine(), "pid": 2**22 + 1, "token": "of the dead" * 9, "beats": 10**9}
    file.write_text(json.dumps(owner, indent=4))
    own = Leases(heartbeat=0.001)
    with own.claim(tmp_path / "a"):
        contents: set[bytes] = set()
        while len(contents) < 4 and own.is_held(tmp_path / "a"):
            contents.add(file.read_bytes())
        assert len(contents) == 4
    assert list(tmp_path.iterdir()) == []


def test_a_shard_of_a_sleeper_takes_no_place_of_one_that_is_read(tmp_path):
    """A folder would be away for a moment."""

    def slept(number: int, path: Path) -> None:
        write_folder(number, tmp_path / "a")  # by another, who took it for dead
        write_folder(number, path)

    before: list[int] = []

    def is_over() -> bool:
        before.append((tmp_path / "a" / "rows.npy").stat().st_ino)
        return len(before) > 1

    make_shard(Shards(slept, [tmp_path / "a"], range(1), is_over), 0)
    assert (tmp_path / "a" / "rows.npy").stat().st_ino == before[0]
    assert not list(tmp_path.glob(".a.*.partial"))


def test_two_processes_write_one_file_under_names_of_their_own(tmp_path):
    path = tmp_path / "scores.parquet"
    with replaced(path) as first:
        first.write_text("of the first")
        with replaced(path) as second:
            second.write_text("of the second, wh")
            assert first.exists()
        assert path.read_text() == "of the second, wh"
    assert path.read_text() == "of the first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_dead_process_left_half_written_is_removed_and_that_of_the_living_stays(tmp_path):
    path = tmp_path / "pipeline"
    dead = os.fork()
    if dead == 0:
        try:
            with replaced(path) as aside:
                write_folder(1, aside)
                os._exit(0)
        finally:
            os._exit(1)
    os.waitpid(dead, 0)
    assert len(list(tmp_path.glob(".pipeline.*.partial"))) == 1
    with replaced(path) as living:
        living.write_text("half")
        with replaced(path.with_name("pipeline.json")) as other:
            other.write_text("{}")
        with replaced(path) as again:
            again.mkdir()
        assert living.exists()
        path.rmdir()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["pipeline", "pipeline.json"]


# A power cut.


@pytest.fixture
def events(monkeypatch) -> list[tuple[str, str]]:
    """Files synced to disk and files renamed, in order."""
    found: list[tuple[str, str]] = []
    sync = os.fsync
    replace = os.replace

    def record_sync(number: int) -> None:
        found.append(("disk", Path(os.readlink(f"/proc/self/fd/{number}")).name))
        sync(number)

    def record_replace(before: Any, after: Any) -> None:
        found.append((Path(before).name, Path(after).name))
        replace(before, after)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    return found


def test_a_file_is_on_the_disk_before_its_name_and_the_name_thereafter(tmp_path, events):
    write_json(tmp_path / "scale.json", {"knots": [0, 1]})
    aside, after = events[1]
    assert (aside[:12], after) == (".scale.json.", "scale.json")
    assert events == [("disk", aside), (aside, "scale.json"), ("disk", tmp_path.name)]


def test_all_files_of_a_folder_are_on_the_disk_before_its_name(tmp_path, events):
    aside = tmp_path / "aside"
    (aside / "unet").mkdir(parents=True)
    for name in ("model.json", "unet/weights"):
        (aside / name).write_text("x")
    for _ in range(2):  # in the place of nothing, and of an earlier one
        shutil.copytree(aside, tmp_path / "copy")
        events.clear()
        put_in_place(tmp_path / "copy", tmp_path / "step-1")
        place = events.index(("copy", "step-1"))
        synced = {name for what, name in events[:place] if what == "disk"}
        assert synced == {"copy", "unet", "model.json", "weights"}
        assert ("disk", tmp_path.name) in events[place:]


def test_shards_claims_and_records_of_a_stage_are_on_the_disk(tmp_path, events):
    stage(tmp_path / "s", {}, write, 1)
    names = [after for before, after in events if before != "disk"]
    assert names == ["making.json", ".part-00000.sizes", "part-00000", "made_of.json"]
    assert events[-1] == ("disk", "s")
    create(tmp_path / "s" / "new", "text")
    assert events[-1] == ("disk", "new")


SHARDS = {"file": write, "folder": write_folder}


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize(("kind", "name"), [("file", ""), ("folder", "rows.npy"), ("folder", "rows.json")])
def test_an_empty_or_short_shard_is_made_again(kind, name, size, tmp_path):
    made: list[int] = []

    def make(number: int, path: Path) -> None:
        if number == 2 and made == [0, 1]:
            raise RuntimeError("the power is cut")
        made.append(number)
        SHARDS[kind](number, path)

    with pytest.raises(RuntimeError, match="the power is cut"):
        stage(tmp_path / "s", {}, make, 3)
    broken = tmp_path / "s" / "part-00001" / name
    if size and name == "rows.json":
        broken.unlink()
    else:
        cut(broken, size)
    paths = stage(tmp_path / "s", {}, make, 3)
    assert sorted(made) == [0, 1, 1, 2]
    stage(tmp_path / "whole", {}, SHARDS[kind], 3)
    for path in paths:
        again = tmp_path / "whole" / path.name
        files = sorted(path.rglob("*")) or [path]
        assert [file.read_bytes() for file in files] == [
            file.read_bytes() for file in sorted(again.rglob("*")) or [again]
        ]


@pytest.mark.parametrize("note", [None, *DAMAGED])
def test_a_shard_whose_note_is_damaged_is_made_again_and_one_of_an_earlier_version_is_whole(note, tmp_path):
    made: list[int] = []

    def make(number: int, path: Path) -> None:
        made.append(number)
        if made == [0, 1]:
            raise KeyboardInterrupt
        write(number, path)

    with pytest.raises(KeyboardInterrupt):
        stage(tmp_path, {}, make, 2)
    file = tmp_path / ".part-00000.sizes"
    if note is None:
        file.unlink()
    else:
        file.write_bytes(note)
    stage(tmp_path, {}, make, 2)
    assert sorted(made) == ([0, 1, 1] if note is None else [0, 0, 1, 1])


# Damaged and made-up files.


@pytest.mark.parametrize(
    "content",
    [*DAMAGED, b'{"pid": -1, "machine": 3}', b'{"pid": "1"}', b'{"machine": {"a": []}}'],
)
def test_a_claim_that_says_nothing_is_taken_when_it_has_not_changed_for_a_minute(content, tmp_path, clock):
    (tmp_path / ".part-00000.claim").write_bytes(content)
    write_json(tmp_path / "making.json", {"shards": 1})
    assert stage(tmp_path, {}, write, 1)[0].read_text() == "shard 0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made_of.json", "part-00000"]


@pytest.mark.parametrize("process", [-1, 0, 2**40, 10**30])
def test_a_claim_by_no_process_of_this_machine_is_taken_at_once(process, tmp_path):
    owner = {"machine": leases.machine(), "pid": process, "beats": 0}
    (tmp_path / ".a.claim").write_text(json.dumps(owner))
    with Leases().claim(tmp_path / "a") as granted:
        assert granted


@pytest.mark.parametrize("name", [".part-00000.claim", "making.json", "made_of.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_refused_and_not_waited_for(kind, name, tmp_path, clock):
    if not name.startswith(".part"):
        (tmp_path / "part-00000").touch()
    else:
        write_json(tmp_path / "making.json", {"shards": 1})
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(ValueError, match=f"{name}: expected .* got "):
        stage(tmp_path, {}, write, 1)


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_settings_of_a_stage_are_told_where_it_has_shards_and_written_anew_where_not(
    content, tmp_path
):
    (tmp_path / "making.json").write_bytes(content)
    (tmp_path / "part-00000").write_text("of what?")
    if content == DAMAGED[-1]:
        content = b"{"
        (tmp_path / "making.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"making.json: expected .*; remove .* to make it again"):
        stage(tmp_path, {}, write, 1)
    (tmp_path / "part-00000").unlink()
    stage(tmp_path, {}, write, 1)
    (tmp_path / "made_of.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"made_of.json: expected .*; remove .* to make it again"):
        stage(tmp_path, {}, write, 1)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_result_whose_record_is_damaged_is_not_whole(content, tmp_path):
    mark_made(tmp_path, {"variant": "refl"})
    assert is_made(tmp_path, {"variant": "refl"})
    (tmp_path / "made_of.json").write_bytes(content)
    assert not is_made(tmp_path, {"variant": "refl"})


@pytest.mark.parametrize(
    "content", [*DAMAGED, b'{"u#m": 3}', b'{"u#m": {"calls": "many"}}', b'{"u#m": {"no": 1}}']
)
def test_counts_that_are_damaged_are_left_out_and_that_is_said(content, tmp_path, capsys):
    (tmp_path / "usage.json").write_text('{"u#m": {"calls": 2, "failures": 1}}')
    (tmp_path / ".a.usage").write_bytes(content)
    found = read_usage([tmp_path / "usage.json", tmp_path / ".a.usage", tmp_path / "none"])
    assert {name: (counts.calls, counts.failures) for name, counts in found.items()} == {"u#m": (2, 1)}
    assert capsys.readouterr().err.startswith(f"{tmp_path / '.a.usage'}: is damaged")


def test_lines_of_logs_and_caches_that_are_damaged_are_passed_over(tmp_path):
    log = tmp_path / "metrics.jsonl"
    whole = b'{"step": 3, "loss": 1.0}'
    log.write_bytes(b"\n".join([*DAMAGED, b'{"step": "x"}', b'{"step": [1]}', whole, b'{"loss": 2}']))
    assert read_log(tmp_path) == [{"step": 3, "loss": 1.0}]
    cache = tmp_path / "answers.jsonl"
    LlmParser(lambda questions: [], "judge", cache)._keep("make it red", Unparsed("it is ambiguous"))
    whole = cache.read_bytes()
    wrong = [{"key": 1, "parsed": {}}, {"key": "a", "parsed": 3}, {"key": "b", "parsed": {"no": 1}}, {"k": 1}]
    wrong += [{"key": "c", "parsed": {"kind": "add", "source": 3}}, {"key": "d", "parsed": {"reason": [1]}}]
    cache.write_bytes(b"\n".join([*DAMAGED, *(json.dumps(record).encode() for record in wrong), whole]))
    assert list(LlmParser(lambda questions: [], "judge", cache).known.values()) == [
        Unparsed("it is ambiguous")
    ]


def test_arrays_are_joined_as_numpy_saves_them(tmp_path, monkeypatch):
    monkeypatch.setattr("rewardedit.files.JOINED_ROWS", 2)
    sizes = [(3, np.float16), (0, np.float16), (4, np.float32)]
    parts = [np.arange(n * 6, dtype=dtype).reshape(n, 2, 3) for n, dtype in sizes]
    paths = [tmp_path / f"{i}.npy" for i in range(3)]
    for part, path in zip(parts, paths, strict=True):
        np.save(path, part)
    join_arrays(paths, tmp_path / "all.npy")
    np.save(tmp_path / "expected.npy", np.concatenate(parts))
    assert (tmp_path / "all.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()


def model_index(folder: Path) -> None:
    """Says in a sentence why the model cannot be loaded."""
    reason = incomplete({"model_index.json": folder / "model_index.json", "unet/a.safetensors": folder})
    assert reason is None or reason.startswith("its files cannot be read")
    raise ValueError(reason)


READERS: dict[str, Callable[[Path], Any]] = {
    "sampling.json": lambda folder: load_editor(str(folder)),
    "reward_prompt.json": RewardPrompt.load,
    "adiee.json": AdieeSettings.read,
    "calibration.json": lambda folder: Calibration.read(folder / "calibration.json"),
    "example.json": lambda folder: Example.load(folder / "example.json"),
    "scale.json": lambda folder: read_scale(folder / "scale.json"),
    "made_of.json": made_from,
    "scores.json.made_of.json": lambda folder: usage_of(folder / "scores.json"),
    "model_index.json": model_index,
}


@pytest.mark.parametrize("name", READERS)
def test_settings_beside_models_and_results_that_are_damaged_are_refused_in_a_sentence(name, tmp_path):
    nested = [b'{"knots": "all", "axes": 3, "all_data": [3], "usage": [], "scale": 3, "base": [1]}']
    for content in (*DAMAGED, *nested):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError):  # noqa: PT011
            READERS[name](tmp_path)


# Texts that no file can hold.

HALVES = ("\ud83d", "make it \udc00 red", "\ud83d\ud83d\ude00", "caf\u00e9 \udcff.png")


@pytest.mark.parametrize("text", HALVES)
def test_half_a_surrogate_becomes_a_sign_where_it_is_written(text, tmp_path):
    with pytest.raises(ValueError, match="instruction: holds half of a surrogate pair"):
        EditSample("1", torch.zeros(3, 8, 8), f"x {text}")
    sample = EditSample(f"id {text}", torch.zeros(3, 8, 8), "x", source_caption=f"a {text}")
    for own in (sample.id, sample.source_caption):
        assert own is not None
        assert "\ufffd" in own
        own.encode()
    record = {"id": text, "instruction": text, "scorer": "l1", "score": None, "valid": False, "reason": text}
    write_records([{**record, "parts": {text: 1.0}, "row": {"note": text}}], tmp_path / "scores.parquet")
    found = read_records(tmp_path / "scores.parquet")[0]
    for own in (found["reason"], *found["parts"], found["row"]["note"]):
        assert "\ufffd" in own
    write_outputs([Output(0, None, f"no {text}")], tmp_path / "outputs.parquet")
    assert "\ufffd" in str(next(read_outputs(tmp_path / "outputs.parquet")).reason)
    write_json(tmp_path / "record.json", {"text": text})
    kept = json.loads((tmp_path / "record.json").read_text())["text"]
    assert whole_text(kept) == whole_text(text)
    report = Report(f"edits {text}")
    report.text(text)
    assert "\ufffd" in report.save(tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", "make it red", "caf\u00e9", "\U0001f600 smile", "a\0b"])
def test_texts_that_are_whole_stay_as_they_are(text):
    assert whole_text(text) is text
