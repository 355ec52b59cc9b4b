"""Rates the shipped editor on the test split, by backdrop and kind: python benchmarks/rate_editor.py"""

from record import keep

from rewardedit import load_editor
from rewardedit.cli import quiet
from rewardedit.trainers.shapes_autoencoder import reconstruction_rating
from rewardedit.trainers.shapes_editor import rating_by_kind

N = 560  # edits a backdrop

if __name__ == "__main__":
    quiet()
    editor = load_editor("shapes-editor")
    figures = {"n": N, "oracle": rating_by_kind(editor, N)}
    figures["oracle_of_reconstructed_targets"] = reconstruction_rating(editor.pipe.vae)
    keep("shapes-editor", "python benchmarks/rate_editor.py", figures)
