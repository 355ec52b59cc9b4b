"""Training data of a scorer, from its run's settings."""

import yaml

from rewardedit.evaluation.overlap import trained_on
from rewardedit.evaluation.protocols.protocol import TrainingData


def write_run(folder, **settings):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


def test_settings_by_a_checkpoint_name_what_it_saw(tmp_path):
    """Rows that another run labelled count by that run's data; rows that only judged do not."""
    data = {"name": "magicbrush", "path": "osunlp/MagicBrush", "split": "dev"}
    both = {"mine": data, "humans": {"name": "humanedit", "path": "dev"}}
    labelled = write_run(tmp_path / "data", data=both)
    rows = {"name": "labelled", "path": str(labelled / "rows")}
    held_out = {"data": {"name": "ultraedit", "path": "x"}}
    run = write_run(tmp_path / "run", data={"rows": rows}, evaluate=held_out)
    (labelled / "rows").mkdir()
    (run / "scorer").mkdir()
    found = trained_on("adiee", checkpoint=str(run / "scorer"))
    assert set(found) == {
        TrainingData("magicbrush", "dev", "osunlp/MagicBrush"),
        TrainingData("humanedit", "dev", "dev"),
    }
    assert trained_on("adiee", checkpoint="someone/adiee") == []
    assert trained_on("l1") == []
