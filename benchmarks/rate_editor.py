"""Rates the shipped editor on the test split, by backdrop and kind: python benchmarks/rate_editor.py"""

import json
from pathlib import Path

from rewardedit import load_editor
from rewardedit.cli import quiet
from rewardedit.trainers import _run
from rewardedit.trainers.autoencoder import reconstruction_rating
from rewardedit.trainers.editor import rating_by_kind

N = 560  # edits a backdrop

if __name__ == "__main__":
    quiet()
    editor = load_editor("shapes-editor")
    result = {
        "command": "python benchmarks/rate_editor.py",
        **_run.environment(),
        "n": N,
        "oracle": rating_by_kind(editor, N),
        "oracle_of_reconstructed_targets": reconstruction_rating(editor.pipe.vae),
    }
    out = Path(__file__).parent / "results" / "shapes-editor.json"
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(out)
