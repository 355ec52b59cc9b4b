"""A scorer's training data from the first stage to the last, with tiny editors."""

import errno
import io
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import diffusers
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from rewardedit.cli import main
from rewardedit.cli.recipes import read_recipe
from rewardedit.data import DataConfig, held_out_rows, open_named, open_rows
from rewardedit.images import load_image, to_tensor
from rewardedit.shapes import Shapes
from rewardedit.synthesis.label_rules import OWN_LABELS, Measured, Thresholds, label_output
from rewardedit.synthesis.labelled_shards import label_sequences
from rewardedit.synthesis.labelling import Labelling
from rewardedit.synthesis.rules_config import RulesConfig
from rewardedit.trainers import adiee_data
from tests import forks
from tests.models import tiny_pipeline, tiny_unet

ROWS = 12
SEQUENCES = 3


@pytest.fixture(scope="module")
def text_to_image(tmp_path_factory) -> str:
    """A tiny Stable Diffusion."""
    folder = tmp_path_factory.mktemp("text-to-image")
    parts = tiny_pipeline().components
    parts["unet"] = tiny_unet(4)
    diffusers.StableDiffusionPipeline(**parts, requires_safety_checker=False).save_pretrained(folder)
    return str(folder)


def words_of(editor: str, text_to_image: str, *more: str) -> list[str]:
    """The recipe for shapes with tiny models."""
    methods: dict[str, Any] = {}
    for name, method in read_recipe("shapes/adiee-data/edited", [])["methods"].items():
        methods[f"methods.{name}.model"] = text_to_image if "kind" in method else editor
        methods[f"methods.{name}.num_inference_steps"] = 2 if "kind" in method else 1
    return [
        "train",
        "shapes/adiee-data/edited",
        f"data.shapes.limit={ROWS}",
        f"sequences.shapes.limit={SEQUENCES}",
        *(f"{key}={value}" for key, value in methods.items()),
        f"autoencoder={editor}",
        "batch_size=2",
        *more,
    ]


def few_words_of(editor: str, *more: str) -> list[str]:
    """The same with one editor alone, on few rows and no sequences."""
    return [
        "train",
        "shapes/adiee-data/edited",
        "data.shapes.limit=6",
        "sequences={}",
        f"methods={{editor: {{model: {editor}, num_inference_steps: 1, grade: strong}}}}",
        f"autoencoder={editor}",
        "batch_size=2",
        *more,
    ]


def labelled(folder: Path) -> list[dict[str, Any]]:
    """All rows of a run, in order."""
    shards = sorted((folder / "rows").glob("train-*.parquet"))
    return [row for shard in shards for row in pq.read_table(shard).to_pylist()]


def pixels(stored: bytes) -> torch.Tensor:
    return load_image(io.BytesIO(stored))


@pytest.fixture(scope="module")
def run(tiny_editor, text_to_image, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    # All edits that the rows come with are damaged: none of them may be seen again.
    words = words_of(tiny_editor, text_to_image, "data.shapes.shapes.quality_mix={damaged: 1.0}")
    assert main([*words, "--out", str(out)]) == 0
    return out


def test_every_row_is_labelled_by_the_rule_that_it_names(run):
    rows = labelled(run)
    limits = json.loads((run / "thresholds.json").read_text())
    thresholds = Thresholds(limits["clip_d"], tuple(limits["similarity"]))
    recipe = read_recipe("shapes/adiee-data/edited", [])["methods"]
    grades = {name: method.get("grade", "other") for name, method in recipe.items()}
    by_rule = Counter(row["rule"] for row in rows)
    assert by_rule["target"] == by_rule["source"] == ROWS
    assert ROWS / 2 < by_rule["augmented_source"] <= ROWS  # none where a text forbids it
    assert by_rule["turns_none"] + by_rule["turns_some"] + by_rule["turns_all"] + by_rule[
        "turns_too_many"
    ] == (9 + 24 + 50)
    assert 0 < by_rule["another_image"] < ROWS
    assert 0 < by_rule["another_instruction"] < ROWS
    for row in rows:
        if row["method"] in grades:
            measured = Measured(row["clip_d"], (row["similarity_1"], row["similarity_2"]))
            assert label_output(measured, thresholds, grades[row["method"]]) == (row["rule"], row["label"])
            assert row["vae_roundtrip"]
        elif row["sequence_id"] is None:
            assert row["label"] == OWN_LABELS[row["rule"]]
    assert len({row["id"] for row in rows}) == len(rows)


def test_the_images_are_what_the_rules_say(run):
    samples = Shapes("train").batch(90_000, ROWS)
    rows = {row["id"]: row for row in labelled(run)}
    for i, name in enumerate(samples.id):
        own = rows[f"{name}/target"]
        assert (pixels(own["source"]) - samples.source[i]).abs().max() < 1 / 255
        assert own["instruction"] == samples.instruction[i]
        for rule, image in (("target", samples.target[i]), ("source", samples.source[i])):
            row = rows[f"{name}/{rule}"]
            away = (pixels(row["edited"]) - image).abs().max()
            assert away > 0.05 if row["vae_roundtrip"] else away < 1 / 255
        other = rows.get(f"{name}/another_instruction")
        if other is not None:
            assert other["instruction"] != samples.instruction[i]
            assert other["instruction"] in samples.instruction
            assert other["target_caption"] is None
        other = rows.get(f"{name}/another_image")
        if other is not None and not other["vae_roundtrip"]:
            nearest = (samples.target - pixels(other["edited"])).abs().amax((1, 2, 3)).argmin()
            assert int(nearest) // 2 == i // 2, "not of the same batch"
            assert int(nearest) != i
    share = sum(row["vae_roundtrip"] for row in rows.values() if row["method"] is None) / sum(
        row["method"] is None for row in rows.values()
    )
    assert 0.3 < share < 0.7


def test_rows_of_two_data_sets_that_number_theirs_alike_are_told_apart():
    data = DataConfig("shapes", limit=7)
    rows = open_named({"one": data, "two": data})
    ids = [rows[i].id for i in range(len(rows))]
    assert len(set(ids)) == 14
    assert ids[0].startswith("one/")
    assert ids[7] == ids[0].replace("one/", "two/")
    assert open_named({"one": data})[0].id == ids[0].removeprefix("one/")


def test_edits_of_known_quality_never_enter(tiny_editor, tmp_path):
    """The same rows with edits of another quality beside them give the same data set."""
    for quality in ("damaged", "right"):
        words = few_words_of(tiny_editor, f"data.shapes.shapes.quality_mix={{{quality}: 1.0}}")
        assert main([*words, "--out", str(tmp_path / quality)]) == 0
    assert labelled(tmp_path / "damaged") == labelled(tmp_path / "right")


def test_the_rows_are_read_and_split_by_their_source(run):
    rows = {row["id"]: row for row in labelled(run)}
    sample = open_rows(DataConfig(name="labelled", path=str(run / "rows")))[0]
    assert sample.label == 0.0
    assert sample.id.endswith("/source")
    assert to_tensor(sample.edited, 3).shape == (3, 64, 64)
    dropped = 0
    for seed in range(20):
        data = DataConfig(name="labelled", path=str(run / "rows"), holdout_sources=6, seed=seed)
        kept, held_out = (
            [part[i].id for i in range(len(part))] for part in (open_rows(data), held_out_rows(data))
        )
        gone = {rows[name]["source_id"] for name in held_out}
        assert len(gone) == len(held_out) == 2
        for name in kept:
            assert rows[name]["source_id"] not in gone
            assert rows[name]["other_source_id"] not in gone
        of_others = {name for name, row in rows.items() if row["source_id"] not in gone}
        dropped += len(of_others) - len(kept)
    assert dropped > 0, "no row showed a held-out image in the place of an edit"


def test_what_no_rule_labels_is_counted(run):
    metrics = json.loads((run / "metrics.json").read_text())
    rows = labelled(run)
    assert metrics["rows"] == len(rows)
    for name, counts in metrics["methods"].items():
        assert counts["made"] == ROWS
        assert counts["kept"] == sum(row["method"] == name for row in rows)
        assert counts["kept"] + counts["dropped"] == ROWS
    assert metrics["methods"]["sdedit"]["dropped"] == 0  # weak methods fail
    assert metrics["skipped"] == 0


def test_the_report_shows_thresholds_and_examples(run):
    page = (run / "report.html").read_text()
    for part in ("Rows by rule and label", "Rows by method and label"):
        assert part in page
    rules = {row["rule"] for row in labelled(run)}
    assert {"turns_some", "target"} <= rules
    assert all(f"<option>{rule}</option>" in page for rule in rules)
    files = re.findall(r'<img [^>]*src="([^"]+)"', page)
    assert len(files) > 20
    assert all((run / file).is_file() for file in files)
    assert "threshold" in page


def test_outputs_may_be_labelled_by_how_far_they_are_from_their_targets(run, tiny_editor, tmp_path):
    words = few_words_of(tiny_editor, "rules.by_target.labels=[[0, 10], [1, 3]]")
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    rows = labelled(tmp_path / "out")
    rules = {row["rule"] for row in rows if row["method"] == "editor"}
    assert "unreached" in rules
    assert rules <= {"unreached", "untouched", "another_instruction"}
    # Tiny editors paint noise: as far from the target as can be.
    assert {row["label"] for row in rows if row["rule"] == "unreached"} == {3.0}
    assert not any(row["rule"] in ("unreached", "untouched") for row in labelled(run))


def test_the_papers_preset_leaves_our_additions_out(tiny_editor, tmp_path):
    words = few_words_of(tiny_editor, "rules.preset=paper")
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    rows = labelled(tmp_path / "out")
    rules = {row["rule"] for row in rows}
    assert not rules & {"another_image", "another_instruction"}
    assert not any(row["vae_roundtrip"] for row in rows if row["method"] is None)
    assert json.loads((tmp_path / "out" / "thresholds.json").read_text())["clip_d"] == 0.2


def table(folder: Path, broken: int, n: int = 8) -> str:
    """Photographs as rows of a table, some cut off."""
    folder.mkdir()
    records = []
    for i in range(n):
        for side in ("source", "target"):
            colours = torch.rand(
                1, 3, 5, 5, generator=torch.Generator().manual_seed(2 * i + (side == "target"))
            )
            large = torch.nn.functional.interpolate(colours, (48, 80), mode="bilinear")[0]
            image = Image.fromarray((large * 255).byte().permute(1, 2, 0).numpy())
            image.save(folder / f"{i}-{side}.jpg")
        records.append(
            {"source": f"{i}-source.jpg", "target": f"{i}-target.jpg", "instruction": f"make it {i}"}
        )
    for i in range(broken):
        path = folder / f"{i}-source.jpg"
        path.write_bytes(path.read_bytes()[:200])
    (folder / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def photographs(path: str, editor: str, *more: str) -> list[str]:
    return [
        "train",
        "shapes/adiee-data/edited",
        f"data={{photographs: {{name: table, path: {path}, size: 32}}}}",
        "sequences={}",
        f"methods={{editor: {{model: {editor}, num_inference_steps: 1, grade: strong}}}}",
        f"autoencoder={editor}",
        "batch_size=2",
        "rules.thresholds.clip_d=0.2",  # they have no captions, and so no CLIP-D
        *more,
    ]


def test_rows_without_captions_are_refused_before_they_are_edited(tiny_editor, tmp_path, capsys):
    out = tmp_path / "out"
    words = photographs(
        table(tmp_path / "data", 1), tiny_editor, "rules.thresholds.clip_d=null", "--out", str(out)
    )
    assert main(words) == 2
    assert "labelled by CLIP-D, for which no row has captions" in capsys.readouterr().err
    assert not (out / "methods").exists()


def test_too_many_rows_that_cannot_be_read_stop_the_run_with_their_list(tiny_editor, tmp_path, capsys):
    words = photographs(table(tmp_path / "data", 1), tiny_editor, "--out", str(tmp_path / "out"))
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "1 of 8 rows cannot be used, more than bad_rows=0.01 allows" in said
    assert "0-source.jpg" in said
    assert not (tmp_path / "out" / "rows").exists()
    listed = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [(record["row"], record["image"]) for record in listed] == [(0, "editor")]


def test_a_few_such_rows_are_skipped_counted_and_listed(tiny_editor, tmp_path):
    out = tmp_path / "out"
    words = photographs(table(tmp_path / "data", 1), tiny_editor, "bad_rows=0.2", "--out", str(out))
    assert main(words) == 0
    rows = labelled(out)
    sources = {row["source_id"] for row in rows}
    assert len(sources) == 7
    assert Counter(row["rule"] for row in rows)["target"] == 7
    assert json.loads((out / "metrics.json").read_text())["skipped"] == 1
    listed = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert [(record["row"], record["image"]) for record in listed] == [(0, "editor"), (0, "source")]


def test_files_that_change_after_they_were_measured_are_left_out_and_listed(tiny_editor, tmp_path):
    """Row 0 becomes readable and row 5 becomes unreadable before rows are labelled."""
    data, out = tmp_path / "data", tmp_path / "out"
    words = photographs(table(data, 1), tiny_editor, "bad_rows=0.2", "--out", str(out))
    assert main(words) == 0
    shutil.rmtree(out / "rows")
    (data / "0-source.jpg").write_bytes((data / "1-source.jpg").read_bytes())
    (data / "5-source.jpg").write_bytes(b"gone")
    assert main([*words, "--resume"]) == 0
    assert {row["id"].split("/")[0] for row in labelled(out)} == {"1", "2", "3", "4", "6", "7"}
    listed = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert [(record["row"], record["image"]) for record in listed] == [
        (0, "editor"),
        (0, "source"),
        (5, "source"),
    ]
    assert json.loads((out / "metrics.json").read_text())["skipped"] == 2


def test_a_disk_that_fails_ends_the_stage_and_no_sequence_is_lost():
    class Failing(list):
        def __getitem__(self, index: Any) -> Any:
            raise OSError(errno.EIO, "Input/output error")

        def turns(self, index: int) -> int:
            return 1

    labelling = Labelling(
        RulesConfig(), Thresholds(0.0, (0.0, 0.0)), {}, lambda images: images, frozenset(), 0
    )
    with pytest.raises(OSError, match="Input/output"):
        label_sequences("x", Failing(), range(1), DataConfig("shapes"), labelling)


def test_an_editor_that_fails_on_a_row_costs_that_row_s_output_alone(tiny_editor, tmp_path, monkeypatch):
    from rewardedit.diffusion.editors import Editor

    real = Editor.encode

    def fail(self: Editor, source: torch.Tensor, instruction: list[str]) -> Any:
        if "make it 3" in instruction:
            raise RuntimeError("the sampler broke")
        return real(self, source, instruction)

    monkeypatch.setattr(Editor, "encode", fail)
    out = tmp_path / "out"
    words = photographs(table(tmp_path / "data", 0), tiny_editor, "bad_rows=0.2", "--out", str(out))
    assert main(words) == 0
    listed = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert listed == [{"row": 3, "image": "editor", "reason": "the sampler broke"}]
    made = json.loads((out / "metrics.json").read_text())["methods"]["editor"]["made"]
    assert made == 7
    assert Counter(row["rule"] for row in labelled(out))["target"] == 8


def test_what_would_bring_held_out_images_back_or_have_no_effect_is_refused():
    from rewardedit.data.sequences import SequencesConfig

    held_out = DataConfig("magicbrush", "x", holdout_sources=5, size=64)
    with pytest.raises(ValueError, match="holdout_sources: sequences of the same data set would bring"):
        adiee_data.Config("x", {"a": held_out}, sequences={"a": SequencesConfig("magicbrush", "x")})
    adiee_data.Config("x", {"a": held_out}, sequences={"a": SequencesConfig("magicbrush", "y")})
    with pytest.raises(ValueError, match=r"batch_size: expected at least 2, since rules\.negatives"):
        adiee_data.Config("x", {"a": DataConfig("shapes")}, batch_size=1)


def test_magicbrush_s_dev_split_is_warned_of(tmp_path):
    from rewardedit.data.magicbrush import warn_of_benchmarks
    from rewardedit.data.sequences import SequencesConfig

    warn_of_benchmarks((DataConfig("shapes"), SequencesConfig(name="magicbrush", path="x")))
    dev = SequencesConfig(name="magicbrush", path="x", split="dev")
    file = SequencesConfig(name="magicbrush", path="some/magicbrush_dev.parquet")
    for own in (dev, file):
        with pytest.warns(UserWarning, match="ImagenHub and GenAI-Bench use its images"):
            warn_of_benchmarks((DataConfig("shapes"), own))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data={}"], "expected rows by a name of one's own, such as data.mine={name: table"),
        (["data.more={name: shapes, size: 32}"], "data.more: expected size 64 and resize crop"),
        (["methods={source: {model: x}}"], "methods: expected a name of letters"),
        (["methods={a/b: {model: x}}"], "methods: expected a name of letters"),
        (["bad_rows=2"], "bad_rows: expected a share"),
        (["methods={a: {model: x, kind: sdedid}}"], "did you mean sdedit"),
        (["measure.similarity=[clip_i]"], "similarity: expected two scorers"),
    ],
)
def test_settings_that_cannot_be_are_refused(words, message, tmp_path, capsys):
    assert main(["train", "shapes/adiee-data/edited", *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_a_killed_run_goes_on_from_its_whole_shards(tiny_editor, text_to_image, run, tmp_path):
    """Without its last shards and all that came of them it makes the same rows, and no whole shard again."""
    import shutil

    out = tmp_path / "out"
    shutil.copytree(run, out)
    shards = sorted((out / "rows").glob("*.parquet"))
    stamps = {path: path.stat().st_mtime_ns for path in shards[:-1]}
    shards[-1].unlink()
    (out / "rows" / "made_of.json").rename(out / "rows" / "making.json")
    (out / "metrics.json").unlink()
    words = words_of(tiny_editor, text_to_image, "data.shapes.shapes.quality_mix={damaged: 1.0}")
    assert main([*words, "--out", str(out), "--resume"]) == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert labelled(out) == labelled(run)
    assert json.loads((out / "metrics.json").read_text())["rows"] == len(labelled(run))


COMMAND = """
import sys
from rewardedit.cli import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes_make_what_one_makes(tiny_editor, text_to_image, run, tmp_path):
    out = tmp_path / "out"
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    words = words_of(tiny_editor, text_to_image, "data.shapes.shapes.quality_mix={damaged: 1.0}")
    forks.launch(script, 2, *words, "--out", str(out))
    assert labelled(out) == labelled(run)
    assert json.loads((out / "thresholds.json").read_text()) == json.loads(
        (run / "thresholds.json").read_text()
    )
