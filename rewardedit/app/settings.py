"""Settings of the page, and limits on what its users ask for."""

from dataclasses import dataclass

from rewardedit.editing import require_numbers
from rewardedit.serving.settings import ServeConfig


@dataclass(frozen=True)
class AppConfig:
    """Settings of the page.

    Raises:
        ValueError: for a number that is too small, or a target score outside of [0, 10].
    """

    server: ServeConfig  # address, token, and limits on uploads
    max_candidates: int = 8  # most candidates of one request
    max_waiting: int = 16  # requests that may wait for their turn
    size: int | None = None  # shorter side in pixels; None: the image's, at most the editor's
    target_score: float = 10.0  # score that a reward-conditioned editor is prompted for, 0 to 10

    def __post_init__(self) -> None:
        for name in ("max_candidates", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1; got {getattr(self, name)}")
        require_numbers(1, self.size, self.target_score)
