"""Stand-in of UniRL's reward service, written from its stated contract."""

from dataclasses import dataclass
from typing import Any


@dataclass
class ScoreItem:
    history: list[tuple[str, Any]]
    videos: list[Any] | None = None
    metadata: dict[str, Any] | None = None


class BaseScorer:
    name = ""
    version = "1"
    input_kind = "image"
    supports_offload = False
    supports_grad = False
    sub_metric_names: tuple[str, ...] = ()

    def score(self, items: list[ScoreItem]) -> list[dict[str, float]]:
        raise NotImplementedError
