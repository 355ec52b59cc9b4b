"""Strengths of competitors from their comparisons (Bradley and Terry 1952): the odds that i beats j are
exp(s_i − s_j).
"""

import numpy as np

STEPS = 200  # of Newton's method, each of at most 1 in any strength; it takes about ten
CLOSE = 1e-10  # greatest step at which the fit has ended


def bradley_terry(wins: np.ndarray, prior: float = 1.0) -> np.ndarray:
    """Fits strengths s by maximum likelihood, by Newton's method.

    Args:
        wins: (…, k, k): comparisons that i won against j, a tie as half a win of each; the diagonal is
            ignored. Leading dimensions hold resamples.
        prior: ties that are added to every two competitors. Without any, strengths of competitors that
            always win or always lose are infinite.

    Returns:
        (…, k) natural logarithms of strengths, whose mean is 0. NaN for a table without a finite maximum: if
        some competitors never lost to, or never met, the others.

    Raises:
        ValueError: on another shape, fewer than two competitors, or negative numbers.
    """
    wins = np.array(wins, dtype=float)
    if wins.ndim < 2 or wins.shape[-1] != wins.shape[-2] or wins.shape[-1] < 2:
        raise ValueError(f"wins: expected (…, k, k) of at least two competitors; got {wins.shape}")
    if not (wins >= 0).all() or prior < 0:
        raise ValueError("wins: expected numbers of at least 0, and prior as well")
    k = wins.shape[-1]
    wins = (wins + prior / 2) * (1 - np.eye(k))
    met = wins + wins.swapaxes(-1, -2)
    finite = _is_connected(wins)
    strengths = np.zeros(wins.shape[:-1])
    for _ in range(STEPS):
        expected = _expected_share(strengths)
        gradient = (wins - met * expected).sum(-1)
        weight = met * expected * (1 - expected)
        curvature = np.eye(k) * weight.sum(-1)[..., None] - weight + 1 / k  # 1 / k: the mean stays 0
        curvature = np.where(finite[..., None, None], curvature, np.eye(k))
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        step = np.where(finite[..., None], step, 0.0)
        strengths += step / np.maximum(1, np.abs(step).max(-1, keepdims=True))
        if np.abs(step).max(initial=0.0) < CLOSE:
            break
    strengths -= strengths.mean(-1, keepdims=True)
    return np.where(finite[..., None], strengths, np.nan)


def _expected_share(strengths: np.ndarray) -> np.ndarray:
    """Shares (…, k, k) of comparisons that i wins against j."""
    return 1 / (1 + np.exp(strengths[..., None, :] - strengths[..., :, None]))


def _is_connected(wins: np.ndarray) -> np.ndarray:
    """True (…) where a chain of wins leads from each competitor to each other one (Ford 1957)."""
    k = wins.shape[-1]
    reached = ((wins > 0) | np.eye(k, dtype=bool)).astype(float)
    for _ in range(max(1, (k - 1).bit_length())):
        reached = (reached @ reached > 0).astype(float)
    return (reached > 0).all((-2, -1))
