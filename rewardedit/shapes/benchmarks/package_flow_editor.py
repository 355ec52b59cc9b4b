"""Packages the small flow-matching editor of a run, and keeps what the run measured of it:
python rewardedit/shapes/benchmarks/package_flow_editor.py [RUN]

RUN is the folder of `rewardedit train shapes/flow-editor`, by default runs/shapes-flow-editor. It becomes
`shapes/flow-editor`. The weights of the autoencoder are those of shapes/editor, and are not packaged again.
"""

from pathlib import Path

from common import read_command_line

from rewardedit.models import FOLDER
from rewardedit.shapes.packaging import package
from rewardedit.untrusted import read_json_file

RUN = "runs/shapes-flow-editor"
TRAINING = "rewardedit train shapes/flow-editor"
SHARED = {"vae": "shapes/editor"}


def main(folder: Path = FOLDER / "flow_editor") -> None:
    """Writes the packaged model to `folder`, and the result."""
    line = read_command_line(__doc__, "RUN", many=False)
    run = Path(*line.words or [RUN])
    environment, metrics = (read_json_file(run / f"{name}.json") for name in ("environment", "metrics"))
    if line.write:
        package(run / "pipeline", folder, SHARED)
    line.keep("flow-editor", {**environment, **metrics}, TRAINING)


if __name__ == "__main__":
    main()
