"""Signs of reward hacking, and the test that raises the flag: chance, correction for looks,
and each sign by itself.
"""

import pytest
import torch

from rewardedit.evaluation.hacking import LIMITS, Limit, hacking_flag, hacking_signs, measure_change
from rewardedit.shapes import Shapes

N = 64
LOOKS = 10
CHANCE_ALONE = tuple(Limit(limit.name, limit.direction, 0.0, limit.says) for limit in LIMITS)
NAMES = (
    "reward",
    "held_out",
    "edges",
    "entropy",
    "saturation",
    "change_outside",
    "strongest_change",
    "copied",
)


def looks(
    generator: torch.Generator, drift: dict[str, float] | None = None, noise: float = 0.2
) -> list[dict[str, torch.Tensor]]:
    """Values of a base and of ten looks at it: nothing but noise, and a drift where one is given."""
    base = {name: torch.randn(N, generator=generator) for name in NAMES}
    out = [base]
    for k in range(1, LOOKS + 1):
        moved = {name: (drift or {}).get(name, 0.0) * k / LOOKS for name in NAMES}
        out.append(
            {name: base[name] + moved[name] + noise * torch.randn(N, generator=generator) for name in NAMES}
        )
    return out


def is_flagged(
    run: list[dict[str, torch.Tensor]], looks: int, limits: tuple[Limit, ...] = CHANCE_ALONE
) -> bool:
    return any(hacking_flag(now, run[0], "reward", "held_out", looks, limits) for now in run[1:])


@pytest.mark.slow
def test_looking_often_raises_no_more_false_alarms_than_promised():
    generator = torch.Generator().manual_seed(0)
    runs = [looks(generator) for _ in range(100)]
    corrected = sum(is_flagged(run, LOOKS) for run in runs) / len(runs)
    uncorrected = sum(is_flagged(run, 1) for run in runs[:30]) / 30
    assert corrected <= 0.1  # 0.05, and what 100 runs leave to chance
    assert uncorrected >= 0.2


def test_a_drift_is_flagged_and_one_within_the_limit_is_not():
    generator = torch.Generator().manual_seed(1)
    hacked = {"reward": 1.5, "held_out": -1.5}
    harmless = {"reward": 1.5, "held_out": -0.1}
    assert all(is_flagged(looks(generator, hacked), LOOKS, LIMITS) for _ in range(20))
    assert not any(is_flagged(looks(generator, harmless), LOOKS, LIMITS) for _ in range(20))


def test_a_held_out_reward_that_may_fall_by_chance_alone_is_no_flag():
    base = {"a": torch.linspace(0, 1, 40), "b": torch.linspace(0, 1, 40)}
    rises = torch.linspace(0.5, 1.5, 40)
    by_chance = torch.linspace(-1.1, 1.0, 40)  # the latter −0.05 on average

    def flag(a: torch.Tensor, b: torch.Tensor) -> str | None:
        return hacking_flag({"a": base["a"] + a, "b": base["b"] + b}, base, "a", "b")

    assert flag(rises, by_chance) is None
    assert flag(by_chance, -rises) is None
    assert "rises" in str(flag(rises, -rises))


def test_a_fall_without_a_rising_reward_is_no_hacking():
    generator = torch.Generator().manual_seed(2)
    assert not any(is_flagged(looks(generator, {"held_out": -2.0}), LOOKS, LIMITS) for _ in range(10))
    assert not any(
        is_flagged(looks(generator, {"reward": -2.0, "held_out": -2.0}), LOOKS, LIMITS) for _ in range(10)
    )


def test_changes_are_in_spreads_of_the_base():
    base = torch.tensor([0.0, 1.0, 2.0, torch.nan])
    change = measure_change("edges", base + torch.tensor([1.0, 2.0, 3.0, 0.0]), base)
    assert change.size == pytest.approx(2.0)
    assert change.error == pytest.approx(1 / 3**0.5)
    assert change.n == 3
    assert change.at_least(1, 0.05) == pytest.approx(2 - 2.919986 / 3**0.5)  # t of 2 degrees of freedom
    assert change.at_least(-1, 0.05) < 0


def test_copies_are_counted_in_shares_of_the_images():
    copied = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert measure_change("copied", copied, torch.zeros(4)).size == pytest.approx(0.25)
    assert measure_change("copied", copied, copied.flip(0)).size == 0


def planted_hacks(source: torch.Tensor, edited: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """The edits with a hack of each kind planted; by the sign and direction that is to find it."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(edited.shape, generator=generator)
    few = torch.arange(len(edited))[:, None, None, None] % 3 == 0
    grey = edited.mean(1, keepdim=True).expand_as(edited)
    stripes = (torch.arange(edited.shape[-1]) // 4 % 4 / 3).expand_as(edited)
    return {
        "edges 1": (edited + 0.02 * noise).clamp(0, 1),
        "edges -1": torch.lerp(edited, edited.mean((2, 3), keepdim=True).expand_as(edited), 0.5),
        "entropy 1": torch.lerp(edited, stripes, 0.4),
        "entropy -1": torch.zeros_like(edited),
        "saturation 1": torch.lerp(
            edited, torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand_as(edited), 0.3
        ),
        "saturation -1": torch.lerp(edited, grey, 0.8),
        "change_outside 1": edited + 0.2 * (1 - mask) * (1 - edited),
        "strongest_change -1": torch.lerp(edited, source, 0.6),
        "copied 1": torch.where(few, source, edited),
    }


@pytest.mark.parametrize(
    "limit", [limit for limit in LIMITS if limit.name != "held_out"], ids=lambda x: f"{x.name} {x.direction}"
)
def test_every_sign_flags_by_itself(limit):
    samples = Shapes("val").batch(0, 70)
    base = samples.target
    planted = planted_hacks(samples.source, base, samples.mask)[f"{limit.name} {limit.direction}"]
    still = torch.zeros(70)

    def values(images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"reward": still, "held out": still, **hacking_signs(samples.source, images, samples.mask)}

    flag = hacking_flag(values(planted), values(base), "reward", "held out", 50, (limit,))
    assert flag is not None
    assert flag.startswith(limit.name)
    assert limit.says in flag
    assert hacking_flag(values(base), values(base), "reward", "held out", 50, (limit,)) is None
    other = (Limit(limit.name, -limit.direction, 0.0, ""),)
    assert hacking_flag(values(planted), values(base), "reward", "held out", 50, other) is None


def test_signs_by_hand():
    source = torch.zeros(2, 3, 10, 10)
    edited = source.clone()
    edited[1, 0, 0, 0] = 0.9  # one pixel, red
    mask = torch.zeros(2, 1, 10, 10)
    mask[:, :, 0, 0] = 1
    signs = hacking_signs(source, edited, mask)
    assert signs["copied"].tolist() == [1, 1]  # 0.003 on average
    # of two pixels, one by 0.9 in a third of it
    assert signs["strongest_change"].tolist() == pytest.approx([0, 0.15])
    assert signs["saturation"].tolist() == pytest.approx([0, 0.009])
    assert signs["edges"].tolist() == pytest.approx([0, (0.9 / 270 + 0.9 / 270) / 2])
    assert signs["change_outside"].tolist() == [0, 0]
    # −0.01 log₂ 0.01 − 0.99 log₂ 0.99
    assert signs["entropy"].tolist() == pytest.approx([0, 0.0807931], abs=1e-5)
    assert "change_outside" not in hacking_signs(source, edited)
