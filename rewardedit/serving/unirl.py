"""UniRL's reward service, protocol version 1: GET /rewards and POST /score.

A sample's history has two turns, the source and the edit; one turn, a text-to-image sample, fails by name.
A sample that cannot be scored is named in `errors` and has no result, which is how the protocol says that it
failed: its client raises the reason. The score is the first sub-metric, which is the one that the client
takes by default; the components follow on their own scales.
"""

import math
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from rewardedit.serving.budget import Refusal
from rewardedit.serving.edits import BadEdit, RawEdit
from rewardedit.serving.reading import read_model
from rewardedit.serving.service import Outcome, Service
from rewardedit.serving.v1 import PROBLEMS, body_schema
from rewardedit.serving.wire import FirstFault
from rewardedit.untrusted import printable, whole_text

VERSION = "1"
SCORE = "score"  # the sub-metric that comes first
CAPTIONS = ("source_caption", "target_caption")  # that a sample's metadata may hold
Identity = str | int | None
router = APIRouter(tags=["UniRL"])


class Turn(BaseModel):
    """One turn of a sample's history."""

    text: str = ""
    image_b64: str | None = None


class Sample(BaseModel):
    """One edit, and the names of the rewards that are asked of it."""

    history: FirstFault[list[Turn]] = Field(description="two turns: the source image, then the edited one")
    required_rewards: FirstFault[list[str]] = Field(min_length=1)
    metadata: dict[str, Any] | None = Field(None, description="may hold source_caption and target_caption")
    request_id: Identity = None
    sample_id: Identity = None
    group_id: Identity = None
    source_rank: Identity = None
    policy_version: Identity = None
    scorer_version: Identity = Field(None, description="fingerprint that the scorer must have")
    idempotency_key: Identity = None


class Samples(BaseModel):
    """A request of UniRL's client."""

    protocol_version: str = VERSION
    requests: FirstFault[list[Sample]]


class SampleAnswer(BaseModel):
    """Results and errors by reward, in the order of the samples."""

    results: list[dict[str, dict[str, float]]]
    errors: list[dict[str, str]]
    identities: list[dict[str, Identity]]
    protocol_version: str = VERSION


def rewards_of(service: Service) -> dict[str, list[str]]:
    """The table of rewards and their sub-metrics."""
    return {name: [SCORE] for name in service.names}


@router.get(
    "/rewards", summary="The served scorers, for UniRL", responses={503: PROBLEMS[503], 401: PROBLEMS[401]}
)
async def rewards(request: Request) -> dict[str, list[str]]:
    """Names of the rewards, each with its first sub-metric."""
    service: Service = request.app.state.service
    service.infos()
    return rewards_of(service)


@router.post(
    "/score", summary="Score samples of UniRL", responses=PROBLEMS, openapi_extra=body_schema(Samples)
)
async def score(request: Request) -> SampleAnswer:
    """Scores samples; those that fail are named in `errors` and have no result."""
    service: Service = request.app.state.service
    service.infos()
    body = await read_model(request, service.config.max_items, Samples)
    if body.protocol_version != VERSION:
        raise Refusal(400, f"protocol_version: expected {VERSION}; got {printable(body.protocol_version)}")
    n = len(body.requests)
    answer = SampleAnswer(results=[{} for _ in range(n)], errors=[{} for _ in range(n)], identities=[])
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, sample in enumerate(body.requests):
        answer.identities.append(_identity(sample, service))
        answer.errors[i] = _errors(sample, service)
        names = tuple(name for name in dict.fromkeys(sample.required_rewards) if name not in answer.errors[i])
        if names:
            groups.setdefault(names, []).append(i)

    for names, rows in groups.items():
        outcomes = await service.score([_edit(body.requests[i]) for i in rows], names)
        for i, outcome in zip(rows, outcomes, strict=True):
            _fill(answer.results[i], answer.errors[i], names, outcome)
    return answer


def _errors(sample: Sample, service: Service) -> dict[str, str]:
    """Reasons, by reward, why a sample cannot be scored."""
    images = [turn.image_b64 for turn in sample.history]
    errors = {}
    for name in sample.required_rewards:
        key = whole_text(name)
        if name not in service.names:
            errors[key] = f"not served; expected one of {', '.join(service.names)}"
        elif len(images) != 2 or None in images:
            n = len([image for image in images if image])
            errors[key] = f"history: expected two images, the source and the edit; got {n}"
        elif sample.scorer_version not in (None, service.fingerprint(name)):
            errors[key] = f"scorer_version: this server has {service.fingerprint(name)}"
    return errors


def _edit(sample: Sample) -> RawEdit:
    source, edited = (turn.image_b64 or "" for turn in sample.history)
    metadata = sample.metadata or {}
    captions = {name: metadata[name] for name in CAPTIONS if isinstance(metadata.get(name), str)}
    return RawEdit(source, edited, sample.history[1].text, **captions)


def _fill(
    results: dict[str, dict[str, float]], errors: dict[str, str], names: tuple[str, ...], outcome: Outcome
) -> None:
    """Enters the scores of one sample, or the reasons why it has none."""
    for name in names:
        if isinstance(outcome, BadEdit):
            errors[name] = outcome.reason
            continue
        scores = outcome[name]
        if scores.score is None or not math.isfinite(scores.score):
            errors[name] = scores.reason or "the score is not finite"
        else:
            results[name] = {SCORE: scores.score} | {k: v for k, v in scores.parts.items() if k != SCORE}


def _identity(sample: Sample, service: Service) -> dict[str, Identity]:
    """The ids of a sample, and the version of its scorer if it asks for one."""
    identity: dict[str, Identity] = {}
    for name in ("request_id", "sample_id", "group_id", "source_rank", "policy_version", "idempotency_key"):
        value = getattr(sample, name)
        identity[name] = whole_text(value) if isinstance(value, str) else value
    served = [service.fingerprint(name) for name in sample.required_rewards if name in service.names]
    identity["scorer_version"] = served[0] if len(served) == 1 else None
    return identity
