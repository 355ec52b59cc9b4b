"""Edits as multipart forms, as `curl -F` and HTML forms send them."""

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from rewardedit.serving.budget import Refusal
from rewardedit.serving.edits import RawEdit

IMAGES = ("source", "edited", "mask")
TEXTS = ("instruction", "source_caption", "target_caption", "id")
REQUIRED = ("source", "edited", "instruction")


async def read_form(request: Request, max_items: int) -> tuple[list[RawEdit], list[str] | None]:
    """The edits of a form and the names of scorers; fields that are repeated are several edits, in order.

    Raises:
        Refusal: 422 for a field that is missing, unknown, of the wrong kind or not there for every edit.
    """
    async with request.form(max_files=3 * max_items + 1, max_fields=5 * max_items + 1) as form:
        unknown = sorted(set(form) - {*IMAGES, *TEXTS, "scorers"})
        if unknown:
            raise Refusal(
                422, f"{unknown[0][:80]}: expected fields among {', '.join((*IMAGES, *TEXTS, 'scorers'))}"
            )
        columns: dict[str, list[bytes | str]] = {}
        for name in (*IMAGES, *TEXTS):
            columns[name] = await _column(form, name)
        n = len(columns["source"])
        if not n:
            raise Refusal(422, "source: field required; with curl: -F source=@FILE")
        for name, values in columns.items():
            if len(values) != n and (values or name in REQUIRED):
                raise Refusal(422, f"{name}: expected {n}, one for each source; got {len(values)}")
        names = [str(name) for name in form.getlist("scorers")]

    edits = []
    for i in range(n):
        fields = {name: values[i] for name, values in columns.items() if values}
        edits.append(RawEdit(**fields))
    return edits, names or None


async def _column(form: FormData, name: str) -> list[bytes | str]:
    """The values of a field: contents of files, or texts."""
    values: list[bytes | str] = []
    for value in form.getlist(name):
        if isinstance(value, UploadFile) != (name in IMAGES):
            kind = "a file" if name in IMAGES else "a text"
            raise Refusal(
                422,
                f"{name}: expected {kind}; with curl: -F {name}=" + ("@FILE" if name in IMAGES else "TEXT"),
            )
        values.append(await value.read() if isinstance(value, UploadFile) else value)
    return values
