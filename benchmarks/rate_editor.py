"""Rates the shipped editor on the test split, by backdrop and edit type: python benchmarks/rate_editor.py"""

from record import keep

from rewardedit import load_editor
from rewardedit.cli import quiet
from rewardedit.evaluation.by_edit_type import rating_by_edit_type
from rewardedit.trainers.shapes_autoencoder import reconstruction_rating

N = 560  # edits a backdrop

if __name__ == "__main__":
    quiet()
    editor = load_editor("shapes-editor")
    figures = {"n": N, "oracle": rating_by_edit_type(editor, N)}
    figures["oracle_of_reconstructed_targets"] = reconstruction_rating(editor.pipe.vae)
    keep("shapes-editor", "python benchmarks/rate_editor.py", figures)
