"""Flow-Factory's remote reward: POST /compute.

Its client repeats every request that fails by status and then loses the reason, takes fewer rewards than
images without a word, and sends no source image where one sample of the batch has none. So the answer is 200
with a reward for each image, all finite, or 200 with the reason as `error`, which the client raises; only a
full or loading server answers by status, so that the client tries again.
"""

import math

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from rewardedit.serving.budget import Refusal
from rewardedit.serving.edits import BadEdit, RawEdit
from rewardedit.serving.reading import read_model
from rewardedit.serving.service import Service
from rewardedit.serving.v1 import PROBLEMS, body_schema
from rewardedit.serving.wire import FirstFault

COMPUTE = "/compute"
REPEATED = (429, 503)  # statuses after which it is right to try again
router = APIRouter(tags=["Flow-Factory"])


class ComputeRequest(BaseModel):
    """A batch of edits; all lists have one entry for each."""

    prompt: FirstFault[list[str]]
    image: FirstFault[list[str]] | None = Field(None, description="edited images, PNG in base64")
    video: FirstFault[list[str]] | None = None
    condition_images: FirstFault[list[FirstFault[list[str]]]] | None = Field(
        None, description="one source image for each, likewise"
    )
    condition_videos: FirstFault[list[FirstFault[list[str]]]] | None = None


class ComputeAnswer(BaseModel):
    """A reward for each image, or the reason why there are none."""

    rewards: list[float] | None = None
    error: str | None = None


def speaks_flow_factory(path: str, refusal: Refusal) -> bool:
    """True if a refusal is to be answered with status 200, as Flow-Factory's client needs it."""
    return path.endswith(COMPUTE) and refusal.status not in REPEATED


RESPONSES = {status: PROBLEMS[status] for status in REPEATED}


@router.post(
    COMPUTE,
    summary="Score a batch of Flow-Factory by the only scorer",
    responses=RESPONSES,
    response_model=ComputeAnswer,
    openapi_extra=body_schema(ComputeRequest),
)
async def compute(request: Request) -> JSONResponse:
    """Scores by the one scorer of this server; with several, /flow-factory/NAME/compute says which."""
    service: Service = request.app.state.service
    name, *others = service.names
    if others:
        reason = f"server_url: append /flow-factory/NAME, where NAME is one of {', '.join(service.names)}"
        return JSONResponse({"error": reason})
    return await _compute(request, name)


@router.post(
    "/flow-factory/{scorer:path}" + COMPUTE,
    summary="Score a batch of Flow-Factory by a named scorer",
    responses=RESPONSES,
    response_model=ComputeAnswer,
    openapi_extra=body_schema(ComputeRequest),
)
async def compute_by(scorer: str, request: Request) -> JSONResponse:
    """Scores by the named scorer."""
    return await _compute(request, scorer)


async def _compute(request: Request, name: str) -> JSONResponse:
    service: Service = request.app.state.service
    try:
        batch = await read_model(request, service.config.max_items, ComputeRequest)
        edits = _edits(batch)
        outcomes = await service.score(edits, [name])
    except Refusal as refusal:
        if refusal.status in REPEATED:
            raise
        return JSONResponse({"error": refusal.reason})

    rewards = []
    for i, outcome in enumerate(outcomes):
        reason = outcome.reason if isinstance(outcome, BadEdit) else outcome[name].reason
        value = None if isinstance(outcome, BadEdit) else outcome[name].score
        if value is None or not math.isfinite(value):
            return JSONResponse({"error": f"sample {i}: {reason or 'the score is not finite'}"})
        rewards.append(value)
    return JSONResponse({"rewards": rewards})


def _edits(batch: ComputeRequest) -> list[RawEdit]:
    """The edits of a batch.

    Raises:
        Refusal: if images or sources are missing, or are not one for each prompt.
    """
    if batch.image is None:
        raise Refusal(422, "image: expected one edited image for each prompt; got none")
    if batch.condition_images is None:
        raise Refusal(
            422,
            "condition_images: expected the source image of each edit; got none; samples must all have one",
        )
    n = len(batch.prompt)
    for name, values in (("image", batch.image), ("condition_images", batch.condition_images)):
        if len(values) != n:
            raise Refusal(422, f"{name}: expected {n}, one for each prompt; got {len(values)}")
    edits = []
    for i, sources in enumerate(batch.condition_images):
        if len(sources) != 1:
            raise Refusal(422, f"condition_images: sample {i}: expected one source image; got {len(sources)}")
        edits.append(RawEdit(sources[0], batch.image[i], batch.prompt[i]))
    return edits
