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
# # Score an edit
#
# Two files of yours: `photo.jpg`, and `edited.png`, which an editor made of it. A GPU with 24 GB holds
# the judge; its 16 GB are downloaded once.

# %%
from rewardedit import EditBatch, load_image, load_scorer

batch = EditBatch(
    load_image("photo.jpg")[None], ["make the man's pants white"], load_image("edited.png")[None]
)
batch

# %% [markdown]
# A vision-language model grades four aspects from 0 to 10. The score is √(consistency · quality); where
# `valid` is False it is NaN, and `reason` says why.

# %%
judge = load_scorer("vlm_judge", checkpoint="Qwen/Qwen2.5-VL-7B-Instruct", dtype="bfloat16")
scores = judge(batch)
batch.show(scores)

# %% [markdown]
# A weighted sum is a scorer, too. The parts are those of the sum.

# %%
kept = load_scorer("dino_i:0.7,l1:0.3")
batch.show(kept(batch))

# %% [markdown]
# The judge has a gradient, which shows the changes that raised the score (green) or lowered it (red).

# %%
from rewardedit.reports.heatmap import draw_heat, heat_map

heat = heat_map(judge, batch)
EditBatch(batch.source, batch.instruction, draw_heat(batch.edited, heat))

# %% [markdown]
# Of a table with the columns source, edited and instruction, `rewardedit score pairs.csv --out
# scores.parquet` scores every row. [More](../docs/score.md)
