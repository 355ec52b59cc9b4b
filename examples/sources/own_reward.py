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
# # A reward of your own
#
# Any function from a batch of edits to one number an edit is a scorer: here the rise of red over blue,
# for "make it warmer".

# %%
# %%writefile warm.py
import rewardedit


@rewardedit.scorer(range=(-1, 1), differentiable=True, family="colour")
def warmth(batch: rewardedit.EditBatch):
    """Rise of red over blue from source to edited image: (b,), from -1 to 1."""
    images = (batch.source, batch.edited)  # (b, 3, h, w) in [0, 1]
    before, after = ((image[:, 0] - image[:, 2]).flatten(1).mean(1) for image in images)
    return (after - before) / 2  # NaN would make a row invalid


# %%
from rewardedit import EditBatch, best_of_n, load_editor, load_image, load_scorer

warm = load_scorer("warm.py:warmth")
photo = load_image("photo.jpg")
batch = EditBatch(photo[None], ["make it warmer"], load_image("edited.png")[None])
batch.show(warm(batch))

# %% [markdown]
# It chooses:

# %%
editor = load_editor("vinesmsuic/magicbrush-jul7")
best_of_n(editor, warm, editor.resize(photo, 512), "make it warmer", n=4)

# %% [markdown]
# A reward that is easily cheated, as this one by painting everything orange, is best summed with one that
# keeps the image:

# %%
both = load_scorer("warm.py:warmth:1.0,dino_i:0.5")
batch.show(both(batch))

# %% [markdown]
# The same name works in the shell and in recipes, where a gradient (`differentiable=True`) trains the
# editor:

# %% language="bash"
# rewardedit score photo.jpg edited.png "make it warmer" --scorer warm.py:warmth

# %% [markdown]
# `rewardedit train magicbrush-refl-24gb reward.scorer=warm.py:warmth reward.scale=range`.
# [More](../docs/extend.md)
