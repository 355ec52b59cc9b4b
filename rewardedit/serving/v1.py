"""The server's own protocol: POST /v1/score and GET /v1/scorers."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rewardedit.serving.budget import Refusal
from rewardedit.serving.edits import BadEdit, RawEdit
from rewardedit.serving.forms import read_form
from rewardedit.serving.reading import read_object, validate
from rewardedit.serving.service import Outcome, Service
from rewardedit.serving.wire import (
    Item,
    ItemResult,
    ItemScore,
    Problem,
    ScoreAnswer,
    ScoreForm,
    ScoreMany,
    ScoreOne,
    ScorerDescription,
    ScorersAnswer,
)
from rewardedit.untrusted import whole_text

REFERENCE = "#/components/schemas/{model}"
DESCRIPTIONS = {
    400: "the body or all images are unreadable",
    401: "the token is wrong or missing",
    403: "the Host or Origin is foreign",
    408: "the body arrived too slowly",
    413: "the body, an image or the number of items is too large",
    422: "a field is missing or does not fit; it is named",
    429: "the server is full; try again after Retry-After seconds",
    503: "models are still loading",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description} for status, description in DESCRIPTIONS.items()
}
router = APIRouter(tags=["rewardedit"])


def body_schema(*models: type[BaseModel], form: type[BaseModel] | None = None) -> dict[str, Any]:
    """OpenAPI's description of a body that a route reads itself: JSON by one of the models, or a form."""
    references = [{"$ref": REFERENCE.format(model=model.__name__)} for model in models]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    content = {"application/json": {"schema": schema}}
    if form is not None:
        reference = {"$ref": REFERENCE.format(model=form.__name__)}
        content["multipart/form-data"] = {"schema": reference}
    return {"requestBody": {"required": True, "content": content}}


def add_schemas(page: dict[str, Any], *models: type[BaseModel]) -> None:
    """Adds the models that `body_schema` refers to to an OpenAPI page."""
    pairs = [(model, "validation") for model in models]
    _, definitions = models_json_schema(pairs, ref_template=REFERENCE)
    page.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])


@router.post(
    "/v1/score",
    summary="Score one edit or many",
    responses=PROBLEMS,
    openapi_extra=body_schema(ScoreMany, ScoreOne, form=ScoreForm),
)
async def score(request: Request) -> ScoreAnswer:
    """Scores edits by all scorers, or by those named. An edit that cannot be read or scored is invalid, with
    its reason; if no edit of the request can be read, the answer is 400 or 413.
    """
    service: Service = request.app.state.service
    service.infos()  # refuses while models are loaded, before the body is looked at
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        edits, names = await read_form(request, service.config.max_items)
    else:
        edits, names = await _read_json(request, service.config.max_items)
    outcomes = await service.score(edits, names)
    _refuse_unreadable(outcomes)
    results = []
    for edit, outcome in zip(edits, outcomes, strict=True):
        results.append(_result(edit, outcome, names or service.names, service))
    return ScoreAnswer(results=results)


async def _read_json(request: Request, max_items: int) -> tuple[list[RawEdit], list[str] | None]:
    values = await read_object(request, max_items)
    if "items" in values:
        many = await validate(values, ScoreMany)
        items: list[Item] = many.items
        names = many.scorers
    else:
        one = await validate(values, ScoreOne)
        items = [one]
        names = one.scorers
    return [_raw(item) for item in items], names


def _raw(item: Item) -> RawEdit:
    return RawEdit(
        item.source,
        item.edited,
        item.instruction,
        item.mask,
        item.source_caption,
        item.target_caption,
        whole_text(item.id or ""),
    )


def _refuse_unreadable(outcomes: list[Outcome]) -> None:
    """Raises Refusal if not one edit could be read."""
    bad = [outcome for outcome in outcomes if isinstance(outcome, BadEdit)]
    if len(bad) == len(outcomes):
        status = 413 if any(edit.too_large for edit in bad) else 400
        raise Refusal(status, f"no item can be read; the first: {bad[0].reason}")


def _result(
    edit: RawEdit, outcome: Outcome, names: list[str] | tuple[str, ...], service: Service
) -> ItemResult:
    scores = {}
    for name in names:
        fingerprint = service.fingerprint(name)
        if isinstance(outcome, BadEdit):
            value, reason, parts = None, outcome.reason, {}
        else:
            value, reason, parts = outcome[name].score, outcome[name].reason, outcome[name].parts
        scores[name] = ItemScore(
            score=value, valid=reason is None, reason=reason, parts=parts, fingerprint=fingerprint
        )
    return ItemResult(id=edit.id or None, scores=scores)


@router.get("/v1/scorers", summary="The served scorers", responses={503: PROBLEMS[503], 401: PROBLEMS[401]})
async def scorers(request: Request) -> ScorersAnswer:
    """Range, direction, required fields, models and device of each scorer."""
    descriptions = []
    for info in request.app.state.service.infos():
        descriptions.append(ScorerDescription(direction="higher", **vars(info)))
    return ScorersAnswer(scorers=descriptions)
