# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Train an editor on pairs of your own
#
# `pairs.csv` has the columns source, target (an edit that is right) and instruction, and names images
# beside it. A GPU with 24 GB trains a LoRA by reward feedback learning (ReFL).

# %%
from rewardedit import collate
from rewardedit.data import DataConfig, open_rows

rows = open_rows(DataConfig("table", "pairs.csv"))
collate([rows[i] for i in range(4)], size=256)

# %% [markdown]
# What the training needs, and what it will take:

# %% language="bash"
# rewardedit train magicbrush-refl-24gb name=own --dry-run \
#     'data={name: table, path: pairs.csv, size: 256}'

# %% language="bash"
# rewardedit train magicbrush-refl-24gb name=own \
#     'data={name: table, path: pairs.csv, size: 256}'

# %% [markdown]
# It ends with a comparison on source images that were held out, judged by scorers that did not train it.
# `runs/own/report.html` shows the edits; `--resume` goes on after a crash.

# %%
import json
from pathlib import Path

json.loads(Path("runs/own/metrics.json").read_text())["differences"]

# %%
from rewardedit import EditBatch, load_editor

editor = load_editor("runs/own")
photo = editor.resize("photo.jpg", 256)  # the shorter side in pixels
edited = editor(photo, ["make the man's pants white"], [0])
EditBatch(photo, ["make the man's pants white"], edited.cpu())

# %% [markdown]
# Other recipes: `rewardedit recipes`. [More](../docs/refl.md)
