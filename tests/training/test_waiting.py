"""A stage that takes longer than the process group's timeout:
no process waits for another in a collective.
"""

import json

from tests.forks import launch

TIMEOUT = 2
SHARD = 3.5  # seconds of the process group, and of the one shard that the first process makes

SCRIPT = f"""
import datetime, json, os, pathlib, sys, time
from accelerate import PartialState
from rewardedit.stages.stage import stage

folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
(folder / f"ready-{{rank}}").touch()  # imports may take longer on one of the two than the timeout
while not all((folder / f"ready-{{r}}").exists() for r in range(2)):
    time.sleep(0.05)
state = PartialState(cpu=True, timeout=datetime.timedelta(seconds={TIMEOUT}))

def make(number, path):
    time.sleep({SHARD} if rank == 0 else 0)
    path.write_text(json.dumps(rank))

stage(folder / "stage", {{"of": 1}}, make, 4)
state.wait_for_everyone()
"""


def test_a_stage_may_take_longer_than_processes_wait_for_one_another(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch(script, 2, str(tmp_path))
    made = sorted((tmp_path / "stage").glob("part-*"))
    assert [json.loads(path.read_text()) for path in made] == [0, 1, 1, 1]  # the faster takes what is left
