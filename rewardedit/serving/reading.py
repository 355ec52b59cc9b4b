"""Bodies of requests: JSON by a pydantic model, with named fields in the errors."""

import asyncio
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from rewardedit.serving.budget import Refusal
from rewardedit.untrusted import printable, read_json

Model = TypeVar("Model", bound=BaseModel)
SHOWN = 5  # faulty fields in an error


async def read_model(request: Request, model: type[Model]) -> Model:
    """The JSON body of a request as a model.

    Raises:
        Refusal: 400 for a body that is no JSON, 422 for one that does not fit, with the names of its fields.
    """
    return validate(await read_object(request), model)


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON body of a request, an object.

    Raises:
        Refusal: 400 for a body that is no JSON, 422 for another value.
    """
    return await asyncio.to_thread(_parse, await request.body())


def _parse(body: bytes) -> dict[str, Any]:
    try:
        values = read_json(body)
    except (ValueError, UnicodeError) as error:
        raise Refusal(400, f"body: expected JSON; got an unreadable one ({printable(str(error))})") from None
    if not isinstance(values, dict):
        raise Refusal(422, "body: expected an object with the fields of a request; got another value")
    return values


def validate(values: Any, model: type[Model]) -> Model:
    """Plain values as a model.

    Raises:
        Refusal: 422 with the names of the fields that are missing or do not fit.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False, include_context=False, include_input=False)[:SHOWN]:
            name = ".".join(map(str, fault["loc"])) or "body"
            faults.append(f"{printable(name)}: {fault['msg'][:1].lower()}{fault['msg'][1:]}")
        raise Refusal(422, "; ".join(faults)) from None
