"""Commands for photographs: published models by default, the offline world's by name."""

import json
from pathlib import Path

import pytest
import torch

from rewardedit import EditBatch, load_editor, load_scorer, models
from rewardedit.cli import main
from rewardedit.images import to_pil

INSTRUCTION = "make the circle white"


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """photo.jpg and edited.png, 80 × 60, in the current folder."""
    generator = torch.Generator().manual_seed(0)
    for name in ("photo.jpg", "edited.png"):
        to_pil(torch.rand(3, 60, 80, generator=generator)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)


def score(*words: str) -> int:
    return main(["score", "photo.jpg", "edited.png", INSTRUCTION, *words])


@pytest.mark.usefixtures("photographs", "published")
def test_published_models_are_the_defaults(capsys):
    assert score("--scorer", "clip_d", "dino_i", "vlm_judge", "l1") == 0
    told = capsys.readouterr()
    assert f"clip_d: {models.CLIP}" in told.err
    assert f"vlm_judge: {models.JUDGE}" in told.err
    assert "l1: " not in told.err
    assert "meaningless" not in told.err
    assert len(told.out.splitlines()) == 4
    assert main(["edit", "photo.jpg", INSTRUCTION, "--out", "made", "--steps", "1", "--size", "32"]) == 0
    assert f"editor: {models.EDITOR}" in capsys.readouterr().err
    assert Path("made/gallery.html").is_file()


@pytest.mark.usefixtures("photographs", "published")
def test_bpm_judges_where_no_scorer_is_named(capsys):
    code = score("--json")
    told = capsys.readouterr()
    assert f"bpm: {models.CLIP}, {models.DETECTOR}, {models.SEGMENTER}" in told.err
    (record,) = json.loads(told.out)
    assert record["scorer"] == "bpm"
    assert code == (0 if record["valid"] else 2), "a tiny random detector may find nothing"


@pytest.mark.usefixtures("photographs")
@pytest.mark.parametrize("words", [("score", "--scorer", "clip_d"), ("edit", "--out", "made")])
def test_without_network_and_cache_both_remedies_are_named(words, capsys):
    command, *options = words
    images = ["photo.jpg"] if command == "edit" else ["photo.jpg", "edited.png"]
    assert main([command, *images, INSTRUCTION, *options]) == 2
    told = capsys.readouterr().err
    assert "hf download" in told
    assert "--world shapes" in told
    assert not Path("made").exists()


@pytest.mark.usefixtures("photographs")
def test_the_world_s_models_are_taken_by_name_and_warn_of_photographs(capsys):
    assert score("--world", "shapes") == 0
    told = capsys.readouterr()
    assert "adiee: shapes/adiee" in told.err
    assert "80 × 60" in told.err
    assert "meaningless" in told.err
    words = ["--world", "shapes", "--steps", "1", "--best-of", "2"]
    assert main(["edit", "photo.jpg", INSTRUCTION, "--out", "made", *words]) == 0
    told = capsys.readouterr().err
    assert "editor: shapes/editor" in told
    assert "meaningless" in told


@pytest.mark.parametrize(
    ("name", "recipe"), [("vifi_clip", "humanedit-vifi-clip"), ("adiee", "adiee-scorer")]
)
def test_scorers_without_published_weights_name_their_recipe(name, recipe):
    with pytest.raises(ValueError, match=f"rewardedit train {recipe}.*shapes/"):
        load_scorer(name)


def test_an_unknown_model_of_the_world_is_named_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean shapes/editor"):
        load_editor("shapes/editr")


@pytest.mark.usefixtures("published")
def test_scorers_load_published_models_in_python():
    image = torch.rand(1, 3, 48, 48)
    batch = EditBatch(image, [INSTRUCTION], image.flip(-1))
    assert load_scorer("clip_d")(batch).valid.tolist() == [True]
    assert load_scorer("dino_i")(batch).valid.tolist() == [True]
