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
# # Choose the best of N edits
#
# An editor makes N edits of `photo.jpg`, a scorer ranks them.

# %%
from rewardedit import best_of_n, load_editor, load_scorer

instruction = "make the man's pants white"
editor = load_editor("vinesmsuic/magicbrush-jul7")
photo = editor.resize("photo.jpg", 512)  # the shorter side in pixels
judge = load_scorer("vlm_judge", checkpoint="Qwen/Qwen2.5-VL-7B-Instruct", dtype="bfloat16")

# %%
result = best_of_n(editor, judge, photo, instruction, n=8)
result

# %% [markdown]
# The best comes first. Every candidate has a seed, by which the editor makes it again.

# %%
from rewardedit.images import to_pil

to_pil(result.best).save("best.png")
again = editor(photo, [instruction], [result.best_seed])
float((again[0].cpu() - result.best).abs().max())

# %% [markdown]
# Means over a few candidates say whether a scorer can tell them apart at all: if `std` is near 0, more
# candidates do not help.

# %%
valid = result.scores.score[result.scores.valid]
{"mean": float(valid.mean()), "best": float(valid.max()), "std": float(valid.std())}

# %% [markdown]
# `rewardedit edit photos "make it winter" --best-of 8 --scorer vlm_judge --out winter` does the same over
# a folder. [More](../docs/choose.md)
