"""A reward of one's own: a function from a batch of edits to one score an edit.

rewardedit score photo.jpg edited.png "make it warmer" --scorer examples/own_reward.py:warmth
rewardedit edit photo.jpg "make it warmer" --out chosen --best-of 8 --scorer examples/own_reward.py:warmth
rewardedit train magicbrush-refl-24gb reward.scorer=examples/own_reward.py:warmth reward.scale=range
"""

import rewardedit


@rewardedit.scorer(range=(-1, 1), differentiable=True, family="colour")
def warmth(batch: rewardedit.EditBatch):
    """Rise of red over blue from source to edited image: (b,), from -1 to 1."""
    images = (batch.source, batch.edited)  # (b, 3, h, w) in [0, 1]
    before, after = ((image[:, 0] - image[:, 2]).flatten(1).mean(1) for image in images)
    return (after - before) / 2
