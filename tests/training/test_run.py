"""Common parts of all trainers: files that are complete or absent, checkpoints, and the order of the rows."""

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from rewardedit import RewardPrompt
from rewardedit.config import to_dict
from rewardedit.data import DataConfig
from rewardedit.data.digests import file_digests
from rewardedit.diffusion.editors import load_editor
from rewardedit.diffusion.saving import save_editor
from rewardedit.evaluation.evaluate_config import EvaluateConfig
from rewardedit.files import write_json
from rewardedit.models import digests
from rewardedit.relabel import RelabelConfig
from rewardedit.stages.stage import is_made, mark_made
from rewardedit.trainers.reward_conditioned import Config
from rewardedit.trainers.vifi_clip import Config as VifiConfig
from rewardedit.training import checkpoints
from rewardedit.training.checkpoints import load_newest_checkpoint, save_checkpoint
from rewardedit.training.loop import batch_rows
from rewardedit.training.run import packaged_models, require_resumable, require_same_weights, start


class Dies:
    """Something to be checkpointed that is killed while it is written."""

    alive = True

    def state_dict(self) -> dict:
        if not self.alive:
            raise KeyboardInterrupt
        return {"step": 1}

    def load_state_dict(self, state: dict) -> None:
        self.alive = state["step"] == 1


WORLD = DataConfig("shapes")
EDITOR = "shapes/editor"
CLIP = {"checkpoint": "shapes/clip"}
LABELS = RelabelConfig("l1")


def test_a_checkpoint_that_was_being_written_when_the_run_was_killed_is_not_taken_up(tmp_path, monkeypatch):
    accelerator = Accelerator(cpu=True)
    thing = Dies()

    def save(step: int, killed: bool) -> None:
        thing.alive = not killed
        with monkeypatch.context() as patch:
            if killed:  # a process that is killed clears nothing away
                patch.setattr(checkpoints, "remove", lambda path: None)
            try:
                save_checkpoint(accelerator, tmp_path, step, [thing])
            except KeyboardInterrupt:
                assert killed

    save(2, killed=True)
    assert load_newest_checkpoint(accelerator, tmp_path, [thing]) == 0
    save(4, killed=False)
    save(6, killed=True)
    assert load_newest_checkpoint(accelerator, tmp_path, [thing]) == 4
    save(6, killed=False)
    assert load_newest_checkpoint(accelerator, tmp_path, [thing]) == 6
    for step in (999_999, 1_000_000, 1_000_001):  # names of more digits than all before
        save(step, killed=False)
        assert load_newest_checkpoint(accelerator, tmp_path, [thing]) == step


def test_a_result_that_was_cut_off_does_not_count_as_finished(tiny_editor, tmp_path):
    editor = load_editor(tiny_editor)
    out = tmp_path / "pipeline"
    made_of = {"variant": "conditioned", "train": {"max_steps": 4}}
    save_editor(editor, out)
    assert not is_made(out, made_of)  # killed before the end of the variant
    mark_made(out, made_of)
    assert is_made(out, made_of)
    assert not is_made(out, {**made_of, "train": {"max_steps": 8}})


def test_a_pipeline_that_is_killed_while_it_is_saved_leaves_no_folder_and_an_earlier_one_as_it_was(
    tiny_editor, tmp_path
):
    class Killed(RewardPrompt):
        def save(self, folder) -> None:
            raise KeyboardInterrupt

    editor = load_editor(tiny_editor)
    out = tmp_path / "pipeline"
    for earlier in (False, True):
        with pytest.raises(KeyboardInterrupt):
            save_editor(replace(editor, prompt=Killed("{instruction} {word}")), out)
        assert out.exists() == earlier
        save_editor(editor, out)
    assert load_editor(str(out)).prompt is None


def test_who_reads_while_a_file_is_written_anew_reads_the_old_one_to_its_end(tmp_path):
    path = tmp_path / "metrics.json"
    write_json(path, {"of": "the first run"})
    with path.open() as reader:
        write_json(path, {"of": "the second run", "more": list(range(100))})
        assert json.load(reader) == {"of": "the first run"}
    assert json.loads(path.read_text())["of"] == "the second run"
    assert [found.name for found in tmp_path.iterdir()] == ["metrics.json"]


def test_every_pass_has_all_rows_in_an_order_of_its_own():
    passes = [batch_rows(50, 50, epoch, seed) for seed in (0, 1) for epoch in (0, 1, 2)]
    for order in passes:
        assert sorted(order.tolist()) == list(range(50))
    assert len({tuple(order.tolist()) for order in passes}) == 6
    in_parts = torch.cat([batch_rows(50, 20, step, 0) for step in range(5)])
    assert torch.equal(in_parts, torch.cat(passes[:2]))


def test_the_minutes_of_a_run_add_up_over_its_calls(tmp_path):
    from rewardedit.training.run import minutes_spent

    first = minutes_spent(tmp_path)()
    assert 0 <= first < 1
    write_json(tmp_path / "minutes.json", {"minutes": 5.0})
    spent = minutes_spent(tmp_path)
    assert 5 <= spent() < 6
    assert json.loads((tmp_path / "minutes.json").read_text())["minutes"] == pytest.approx(spent(), abs=0.1)


def test_a_finished_run_may_be_rated_in_another_way_and_not_trained_in_another(tmp_path):
    before = Config("x", WORLD, LABELS, evaluate=EvaluateConfig(guidance_scale=(1.5, 2.0)))
    other = replace(before, evaluate=EvaluateConfig(guidance_scale=(1.75,)))
    require_resumable(tmp_path, to_dict(before), other)
    with pytest.raises(ValueError, match=r"other settings: .*base"):
        require_resumable(tmp_path, to_dict(before), replace(other, base="another"))


def test_a_run_knows_the_packaged_models_that_it_takes():
    settings = to_dict(
        Config("x", WORLD, RelabelConfig({"clip_d": {"weight": 1.0, **CLIP}, "l1": {"weight": 0.5}}), EDITOR)
    )
    assert packaged_models(settings) == {"shapes/editor", "shapes/clip"}
    settings["relabel"]["scorer"] = {"vifi_clip": {"checkpoint": "runs/own/scorer"}}
    assert packaged_models(settings) == {"shapes/editor"}
    settings |= {"base": "runs/own", "name": "shapes/vlm"}
    assert packaged_models(settings) == set()
    assert packaged_models({"methods": [{"model": "shapes/text-to-image"}]}) == {"shapes/text-to-image"}


def test_a_run_is_not_gone_on_with_where_a_model_that_it_takes_has_other_weights(tmp_path):
    config = Config("x", WORLD, RelabelConfig({"vifi_clip": {"checkpoint": "shapes/vifi-clip"}}))
    models = digests()
    require_same_weights(tmp_path, config)  # begun by a version that did not say
    write_json(tmp_path / "environment.json", {"models": models | {"shapes/adiee": "another"}})
    require_same_weights(tmp_path, config)
    write_json(tmp_path / "environment.json", {"models": models | {"shapes/vifi-clip": "another"}})
    with pytest.raises(ValueError, match="other weights of shapes/vifi-clip than come with this version"):
        require_same_weights(tmp_path, config)


def test_a_run_s_weights_are_looked_at_where_it_is_resumed(tmp_path):
    config = Config("x", WORLD, LABELS, EDITOR)
    start(tmp_path, config)
    start(tmp_path, config, resume=True)
    environment = json.loads((tmp_path / "environment.json").read_text())
    environment["models"]["shapes/editor"] = "another"
    write_json(tmp_path / "environment.json", environment)
    with pytest.raises(ValueError, match="shapes/editor"):
        start(tmp_path, config, resume=True)
    start(tmp_path, config)


def test_a_run_whose_inputs_are_others_now_is_not_resumed(tiny_editor, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(tiny_editor, base)
    table = tmp_path / "pairs.csv"
    table.write_text("source,target,instruction\n")
    config = Config("x", DataConfig("table", str(table), size=64), LABELS, str(base))
    start(tmp_path / "run", config)
    os.utime(table)
    start(tmp_path / "run", config, resume=True)
    weights = next(base.rglob("unet/*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=r"begun with another content of .*base; start again"):
        start(tmp_path / "run", config, resume=True)


def test_what_a_run_writes_itself_is_no_input_of_it(tmp_path):
    cache = tmp_path / "parsed.jsonl"
    cache.write_text("")
    scorer = {"bpm": {"parser_cache": str(cache)}}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-0.parquet").write_text("one")
    data = DataConfig("magicbrush", str(tmp_path / "data"), size=64)
    config = Config("x", data, RelabelConfig(scorer))
    start(tmp_path / "data" / "run", config)
    cache.write_text("more")
    start(tmp_path / "data" / "run", config, resume=True)
    (tmp_path / "data" / "train-0.parquet").write_text("two")
    with pytest.raises(ValueError, match=r"another content of .*data"):
        start(tmp_path / "data" / "run", config, resume=True)


def test_inputs_that_are_named_no_more_are_none_of_a_resumed_run(tmp_path):
    held_out = tmp_path / "b.csv"
    held_out.write_text("source,target,instruction\n")
    config = VifiConfig("x", WORLD, held_out=DataConfig("table", str(held_out), size=64))
    start(tmp_path / "run", config)
    start(tmp_path / "run", replace(config, held_out=None), resume=True)
    assert json.loads((tmp_path / "run" / "inputs.json").read_text()) == {}


def test_a_path_is_an_input_whatever_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs").mkdir()
    table = tmp_path / "pairs" / "rows.csv"
    table.write_text("one")
    before = file_digests(DataConfig("table", "pairs", size=64))
    assert before.keys() == {"pairs"}
    (tmp_path / "pairs" / "scores.json").write_text("beside the table")
    assert file_digests(DataConfig("table", "pairs", size=64)) == before
    table.write_text("two")
    assert file_digests(DataConfig("table", "pairs", size=64)) != before
    assert file_digests({"scorer": "clip_d:0.7,l1:0.3", "name": "pairs"}) == {}
