"""Calibrates the values of BPM's two open parts that count as 0 and 1:
python rewardedit/shapes/benchmarks/calibrate_bpm.py

Uses val, with candidate edits of random quality, so that failed and right ones are among them. The file is
stored next to the small detector; the parts themselves do not depend on it. It also records the options of
BPM for this detector: those with the best agreement with the oracle on val, on edits of trained editors.
"""

from pathlib import Path

from common import read_command_line

from rewardedit import EditBatch, devices
from rewardedit.batch import Scores
from rewardedit.cli import quiet
from rewardedit.models import resolve_model
from rewardedit.scorers.bpm.bpm import CALIBRATION, Bpm
from rewardedit.scorers.bpm.bpm import Calibration as Ends
from rewardedit.scoring import score_batch
from rewardedit.shapes import CORRUPTION_KINDS, WORLD_VERSION, Shapes, corrupt_targets

N = 560
# Each is the best of a few values on val: less certain boxes than the detector's own threshold allows, larger
# crops than the released code's, and areas that must differ by more.
OPTIONS = {
    "regions": {"threshold": 0.1},
    "context": 1.75,
    "judges": {"smaller": 0.75, "larger": 1.25},
}


def measured(scorer: Bpm, n: int) -> Scores:
    """BPM's scores of n candidates, with all qualities equally frequent."""
    samples = Shapes("val", backdrops=("plain", "plain", "textured", "photo")).batch(0, n)
    _, edited = corrupt_targets(samples, dict.fromkeys(CORRUPTION_KINDS, 1 / len(CORRUPTION_KINDS)), seed=1)
    return score_batch(EditBatch(samples.source, samples.instruction, edited), {"bpm": scorer})["bpm"]


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    path = Path(resolve_model("shapes/detector")) / CALIBRATION
    if line.write:  # any values do for loading the scorer
        Ends((0.0, 1.0), (0.0, 1.0), "none yet", options=OPTIONS).write(path)
    scorer = Bpm.from_pretrained().to(devices.default_device())
    ends = Ends.of(measured(scorer, N), f"{N} candidates of val, shapes {WORLD_VERSION}", options=OPTIONS)
    if line.write:
        ends.write(path)
    print(path, ends)
