"""Fixed prompts of a run: their source images are never trained on."""

import hashlib
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rewardedit import load_scorer
from rewardedit.batch import EditBatch, EditSample
from rewardedit.data import DataConfig, held_out_rows, open_rows
from rewardedit.data.datasets import warn_of_shared_sources
from rewardedit.data.worlds import WorldConfig
from rewardedit.diffusion.editors import Editor, SamplingConfig, load_editor
from rewardedit.images import to_pil, to_tensor
from rewardedit.training.monitor import HackingMonitor, MonitorConfig, fixed_prompts, training_data
from rewardedit.training.monitor_page import SHOWN, save_prompts

SOURCES = 30
CONFIG = MonitorConfig(n=3)


def picture(name: str) -> torch.Tensor:
    """An image of eight pixels a side that its name decides."""
    generator = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
    return torch.rand(3, 8, 8, generator=generator)


def write(folder: Path, kind: str, first: int = 0) -> DataConfig:
    """Two rows of each source; in MagicBrush's the second starts from what the first made,
    elsewhere from the same image.
    """
    folder.mkdir()
    records = []
    for i in range(first, first + SOURCES):
        for turn in (1, 2):
            source = f"{i}-{turn - 1}" if kind == "magicbrush" else str(i)
            names = {"source": f"{i}-{turn}-source.png", "target": f"{i}-{turn}-target.png"}
            to_pil(picture(source)).save(folder / names["source"])
            to_pil(picture(f"{i}-{turn}")).save(folder / names["target"])
            if kind == "magicbrush":
                images = {
                    "source_img": names["source"],
                    "mask_img": names["source"],
                    "target_img": names["target"],
                }
                records.append({"img_id": str(i), "turn_index": turn, "instruction": "x", **images})
            elif kind == "humanedit":
                images = {
                    "INPUT_IMG": names["source"],
                    "MASK_IMG": names["source"],
                    "OUTPUT_IMG": names["target"],
                }
                texts = {"EDITING_TYPE": "Add", "INPUT_CAPTION_BY_LLAMA": "a", "OUTPUT_CAPTION_BY_LLAMA": "b"}
                records.append({"IMAGE_ID": f"{i}{turn}", "EDITING_INSTRUCTION": "x", **texts, **images})
            else:
                records.append({"id": f"{i}-{turn}", "instruction": "x", **names})
    name = "rows.jsonl" if kind == "table" else "metadata.jsonl"
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return DataConfig(kind, str(folder), size=8)


def content(source: object) -> bytes:
    return (to_tensor(source, 3) * 255).round().byte().numpy().tobytes()


@pytest.mark.parametrize("kind", ["magicbrush", "humanedit", "table"])
def test_no_source_that_is_watched_is_trained_on(kind, tmp_path):
    data = write(tmp_path / "data", kind)
    kept = training_data(data, CONFIG)
    rows: list[EditSample] = list(open_rows(kept))
    prompts, truth = fixed_prompts(kept, CONFIG)
    watched = {content(image) for image in prompts.source}
    assert truth is None
    assert len(watched) == len(prompts) == CONFIG.n
    assert len(rows) == 2 * (SOURCES - CONFIG.n)
    assert not watched & {content(row.source) for row in rows}
    if kind == "magicbrush":  # nor what an earlier turn of the same image made
        images = {i for i in range(SOURCES) if content(picture(f"{i}-0")) in watched}
        assert len(images) == CONFIG.n
        assert not {int(row.id.split("-")[0]) for row in rows} & images
    again, other = (
        fixed_prompts(training_data(DataConfig(kind, data.path, size=8, seed=seed), CONFIG), CONFIG)[0]
        for seed in (0, 1)
    )
    assert torch.equal(again.source, prompts.source)
    assert not torch.equal(other.source, prompts.source)


def test_what_the_user_holds_out_is_not_trained_on_either(tmp_path):
    data = replace(write(tmp_path / "data", "table"), holdout_sources=3)
    held = {content(row.source) for row in held_out_rows(data)}
    kept = training_data(data, MonitorConfig(n=2))
    assert len(held) == 3
    assert not held & {content(row.source) for row in open_rows(kept)}
    prompts, _ = fixed_prompts(kept, MonitorConfig(n=2))
    assert len(prompts) == 2
    assert {content(image) for image in prompts.source} <= held


def test_figures_of_sources_that_are_trained_on_are_called_too_good(tmp_path):
    data = write(tmp_path / "data", "table")
    overlapping = write(tmp_path / "overlapping", "table", first=SOURCES - 1)
    with pytest.warns(UserWarning, match="1 of its source images are trained on"):
        warn_of_shared_sources([data], overlapping)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_shared_sources([data], write(tmp_path / "apart", "table", first=SOURCES))


def test_a_data_set_of_its_own_is_watched_if_it_shares_no_source(tmp_path):
    data = write(tmp_path / "data", "table")
    apart = write(tmp_path / "apart", "table", first=SOURCES)
    config = MonitorConfig(n=20, data=apart)
    assert training_data(data, config) == data
    prompts, _ = fixed_prompts(data, config)
    assert len(prompts) == len({content(image) for image in prompts.source}) == 20
    overlapping = write(tmp_path / "overlapping", "table", first=SOURCES - 1)
    with pytest.raises(ValueError, match=r"monitor\.data: shares source images"):
        training_data(data, MonitorConfig(data=overlapping))


def test_the_shapes_world_is_watched_on_another_split():
    data = DataConfig("shapes", limit=16, shapes=WorldConfig(seed=3))
    prompts, truth = fixed_prompts(training_data(data, CONFIG), CONFIG)
    assert truth is not None
    assert all("val" in name for name in truth.id)
    assert not {content(image) for image in prompts.source} & {content(row.source) for row in open_rows(data)}
    for wrong, config in (
        (DataConfig("shapes", split="val"), CONFIG),
        (data, MonitorConfig(data=DataConfig("shapes", shapes=WorldConfig(seed=3)))),
    ):
        with pytest.raises(ValueError, match=r"monitor\.data"):
            training_data(wrong, config)
    test = DataConfig("shapes", split="test", shapes=WorldConfig(seed=3))
    assert not torch.equal(fixed_prompts(data, MonitorConfig(n=3, data=test))[0].source, prompts.source)


def test_too_few_sources_are_not_parted(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"source": "a.png", "instruction": "x", "target": "a.png"}) + "\n"
    )
    to_pil(picture("a")).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"at least 3 source images.*; got 1; add rows, or name"):
        open_rows(training_data(DataConfig("table", str(tmp_path), size=8), CONFIG))


def test_a_watched_row_that_cannot_be_read_is_left_out(tmp_path):
    data = training_data(write(tmp_path / "data", "table"), CONFIG)
    whole, _ = fixed_prompts(data, CONFIG)
    watched = [row.id for row in held_out_rows(data)]
    folder = tmp_path / "data"
    (folder / f"{watched[1]}-target.png").write_bytes(b"no image")
    prompts, _ = fixed_prompts(data, CONFIG)
    assert torch.equal(prompts.source, whole.source[[i for i in range(CONFIG.n) if i != 1]])
    for name in watched:
        (folder / f"{name}-target.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=f"can be read, got none among {CONFIG.n} "):
        fixed_prompts(data, CONFIG)


def test_what_a_pair_is_to_become_is_its_target_under_either_name(tmp_path):
    data = training_data(write(tmp_path / "data", "table"), CONFIG)
    whole, _ = fixed_prompts(data, CONFIG)
    rows = tmp_path / "data" / "rows.jsonl"
    rows.write_text(rows.read_text().replace('"target"', '"edited"'))
    prompts, _ = fixed_prompts(data, CONFIG)
    assert torch.equal(prompts.target, whole.target)


def test_prompts_have_the_fields_that_all_of_them_have(tmp_path):
    data = write(tmp_path / "data", "table")
    records = [json.loads(line) for line in (tmp_path / "data" / "rows.jsonl").read_text().splitlines()]
    for record in records[::4]:
        record["mask"] = record["source"]
    (tmp_path / "data" / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    prompts, _ = fixed_prompts(training_data(data, MonitorConfig(n=30)), MonitorConfig(n=30))
    assert prompts.mask is None
    assert prompts.target is not None


def flags_of(
    looks: list[torch.Tensor], folder: Path, checks: int, monkeypatch: pytest.MonkeyPatch
) -> list[str | None]:
    """Flags of a monitor whose looks find such edges of the prompts' edits."""
    scorers = {"reward": load_scorer("l1"), "held out": load_scorer("ssim")}
    image = torch.rand(20, 3, 16, 16)
    monitor = HackingMonitor(EditBatch(image, ["x"] * 20, image), None, scorers, folder, CONFIG, checks)
    left = iter(looks)
    same = {"reward": torch.zeros(20), "held out": torch.zeros(20)}
    monkeypatch.setattr(monitor, "evaluate_prompts", lambda *_: {**same, "edges": next(left)})
    return [monitor.evaluate(Editor(None, SamplingConfig()))["flag"] for _ in looks]


def test_a_flag_is_corrected_for_all_checks_of_the_run(tmp_path, monkeypatch):
    """Edges rise by 0.48 spreads, 3.7 standard errors: Student's t with 19 degrees is beyond 2.9 in 1 of 200
    cases and beyond 4.9 in one of 20,000.
    """
    base = torch.linspace(-1.69, 1.69, 20)
    noise = torch.tensor([-1.0, 1.0] * 10) * 0.565
    looks = [base, base + 0.5 + noise]
    first, flag = flags_of(looks, tmp_path, 1, monkeypatch)
    assert first is None
    assert flag is not None
    assert flag.startswith("edges +0.48 spreads of the base")
    assert flags_of(looks, tmp_path, 100, monkeypatch) == [None, None]


def test_every_check_is_compared_with_the_base_and_not_with_the_last(tmp_path, monkeypatch):
    base = torch.linspace(-1.69, 1.69, 20)
    flags = flags_of([base, base + 0.15, base + 0.3], tmp_path, 3, monkeypatch)
    assert flags[:2] == [None, None]
    assert flags[2] is not None


def test_the_page_is_written_at_every_check_with_images(tiny_editor, tmp_path):
    """Checks of an editor in training; the page reads itself again until the last."""
    image = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    prompts = EditBatch(image, ["make it <b>red</b>", "b", "c"], image, target=image)
    scorers = {"l1": load_scorer("l1"), "ssim": load_scorer("ssim", against="target")}
    config = MonitorConfig(n=3, num_inference_steps=1)
    monitor = HackingMonitor(prompts, None, scorers, tmp_path, config, checks=3)
    editor = load_editor(tiny_editor)
    page = tmp_path / "monitor.html"
    pages = []
    for step in (0, 5, 10):
        monitor.check(editor, step)
        pages.append(page.read_text())
    assert all("data-reload" in text for text in pages)
    assert "step 5" not in pages[0]
    assert "The base, before the first update: L1 similarity" in pages[0]
    assert "Step 5 against the base: L1 similarity" in pages[1]
    assert pages[1].count('data-label="step 5"') == 3
    files = {file.removeprefix("./") for file in re.findall(r'src="(\./[^"]+)"', pages[2])}
    assert files == {
        f"monitor-prompts/0{row}-{name}.png"
        for row in range(3)
        for name in ("before", "step-000000", "step-000005", "step-000010")
    }
    assert all((tmp_path / file).is_file() for file in files)
    assert "make it &lt;b&gt;red&lt;/b&gt;" in pages[2]
    for name in ("L1 similarity", "The training reward.", "Saturation", "No warning so far"):
        assert name in pages[2], name

    sweep = [{"scale": scale, "l1": 0.5, "flag": "copied +0.4" if scale else None} for scale in (0.0, 1.0)]
    monitor.report(sweep)
    last = page.read_text()
    assert "data-reload" not in last
    assert "1 of the change: copied +0.4" in last
    assert last.count('data-role="strip"') == 3, "the middle step of each prompt"


def test_a_monitor_samples_at_the_guidance_that_it_is_given(tiny_editor, tmp_path):
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    prompts = EditBatch(image, ["a"], image, target=image)
    scorers = {"l1": load_scorer("l1"), "ssim": load_scorer("ssim", against="target")}
    editor = load_editor(tiny_editor)
    config = MonitorConfig(n=2, num_inference_steps=1)
    values = []
    for name, guidance in (("own", None), ("none", (1.0, 1.0)), ("some", (3.0, 1.0))):
        monitor = HackingMonitor(prompts, None, scorers, tmp_path / name, config, 1, guidance=guidance)
        values.append(float(monitor.evaluate_prompts(editor)["l1"]))
    plain = replace(editor.settings, guidance_scale=1.0, image_guidance_scale=1.0, num_inference_steps=1)
    edited = editor.sample(editor.encode(image, ["a"]), [0], settings=plain).images
    assert values[1] == pytest.approx(float(scorers["l1"](replace(prompts, edited=edited)).score))
    assert len(set(values)) == 3


def test_only_the_first_prompts_are_kept(tmp_path):
    rows = range(SHOWN - 2, SHOWN + 2)
    save_prompts(tmp_path, torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8), rows, 1)
    names = sorted(path.name for path in (tmp_path / "monitor-prompts").iterdir())
    assert names == ["06-before.png", "06-step-000001.png", "07-before.png", "07-step-000001.png"]
