"""Bodies of requests: JSON by a pydantic model, with named fields in the errors."""

import asyncio
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from rewardedit.serving.budget import Refusal
from rewardedit.untrusted import printable, read_json

Model = TypeVar("Model", bound=BaseModel)
SHOWN = 5  # faulty fields in an error
MOST_KEYS = 20  # of an object
MOST_ENTRIES = 64  # of a list within an edit, and of the list of scorers
DEPTH = 4  # of the lists and objects that become models
FREE = ("metadata",)  # fields that may hold anything
MANY = {"requests": "set request_batch_size"}  # remedies for a list that is too long


async def read_model(request: Request, max_items: int, model: type[Model]) -> Model:
    """The JSON body of a request as a model; see `read_object`.

    Raises:
        Refusal: 400 for a body that is no JSON, 413 for too many items, 422 for one that does not fit, with
            the names of its fields.
    """
    return await validate(await read_object(request, max_items), model)


async def read_object(request: Request, max_items: int) -> dict[str, Any]:
    """The JSON body of a request, an object whose lists have at most `max_items` entries.

    Raises:
        Refusal: 400 for a body that is no JSON, 413 for a list that is too long, 422 for another value or an
            object with too many fields.
    """
    return await asyncio.to_thread(_parse, await request.body(), max_items)


def _parse(body: bytes, max_items: int) -> dict[str, Any]:
    try:
        values = read_json(body)
    except (ValueError, UnicodeError) as error:
        raise Refusal(400, f"body: expected JSON; got an unreadable one ({printable(str(error))})") from None
    if not isinstance(values, dict):
        raise Refusal(422, "body: expected an object with the fields of a request; got another value")
    _require_few_keys("body", values)
    for name, value in values.items():
        _require_bounded(printable(name, 80), value, MOST_ENTRIES if name == "scorers" else max_items, DEPTH)
    return values


def _require_bounded(name: str, value: Any, most: int, depth: int) -> None:
    """Raises Refusal for a long list or an object with many fields: a model of each of their entries, or an
    error for each, takes a hundred times the memory of the body.
    """
    if isinstance(value, list):
        if len(value) > most:
            remedy = MANY.get(name, "send fewer")
            raise Refusal(413, f"{name}: expected at most {most}; got {len(value)}; {remedy}")
        entries = list(enumerate(value))
    elif isinstance(value, dict):
        _require_few_keys(name, value)
        entries = [(printable(key, 80), entry) for key, entry in value.items() if key not in FREE]
    else:
        return
    if depth > 1:
        for key, entry in entries:
            _require_bounded(f"{name}.{key}", entry, MOST_ENTRIES, depth - 1)


def _require_few_keys(name: str, value: dict[str, Any]) -> None:
    if len(value) > MOST_KEYS:
        raise Refusal(422, f"{name}: expected at most {MOST_KEYS} fields; got {len(value)}")


async def validate(values: Any, model: type[Model]) -> Model:
    """Plain values as a model, made in a thread.

    Raises:
        Refusal: 422 with the names of the fields that are missing or do not fit.
    """
    return await asyncio.to_thread(_validate, values, model)


def _validate(values: Any, model: type[Model]) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False, include_context=False, include_input=False)[:SHOWN]:
            name = ".".join(map(str, fault["loc"])) or "body"
            faults.append(f"{printable(name)}: {fault['msg'][:1].lower()}{fault['msg'][1:]}")
        raise Refusal(422, "; ".join(faults)) from None
