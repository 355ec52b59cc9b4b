"""Requests and answers of the server's own protocol, as JSON."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

IMAGE = "PNG, JPEG or WebP in base64, without data: before it; PNG keeps every detail"
Entries = TypeVar("Entries")
FirstFault = Annotated[Entries, Field(fail_fast=True)]  # a list: its first faulty entry alone is an error


class Item(BaseModel):
    """One edit."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(description=f"the image before the edit: {IMAGE}")
    edited: str = Field(description="the image after the edit, likewise; it is resized to the source's size")
    instruction: str = Field(description="what was asked for")
    mask: str | None = Field(None, description="an image, likewise, that is white where change is wanted")
    source_caption: str | None = Field(None, description="what the source shows; some scorers need it")
    target_caption: str | None = Field(None, description="what the edit should show; some scorers need it")
    id: str | None = Field(None, description="repeated in the answer")


class ScoreOne(Item):
    """One edit, by some of the scorers."""

    scorers: FirstFault[list[str]] | None = Field(None, description="names of scorers; all if left out")


class ScoreMany(BaseModel):
    """Several edits, by some of the scorers."""

    model_config = ConfigDict(extra="forbid")

    items: FirstFault[list[Item]] = Field(min_length=1)
    scorers: FirstFault[list[str]] | None = Field(None, description="names of scorers; all if left out")


class ScoreForm(BaseModel):
    """Edits as a form with files; repeated fields are several edits, in order."""

    source: list[str] = Field(json_schema_extra={"items": {"type": "string", "format": "binary"}})
    edited: list[str] = Field(json_schema_extra={"items": {"type": "string", "format": "binary"}})
    instruction: list[str]
    mask: list[str] = Field([], json_schema_extra={"items": {"type": "string", "format": "binary"}})
    source_caption: list[str] = []
    target_caption: list[str] = []
    id: list[str] = []
    scorers: list[str] = Field([], description="names of scorers; all if left out")


class ItemScore(BaseModel):
    """The score of one edit by one scorer."""

    score: float | None = Field(description="higher is better; null if invalid, never NaN")
    valid: bool
    reason: str | None = Field(description="why the edit is invalid; null if it is valid")
    parts: dict[str, float] = Field(description="components of the score, on their own scales")
    fingerprint: str = Field(description="of the scorer's options, weights and code")


class ItemResult(BaseModel):
    """The scores of one edit, by the scorers' names."""

    id: str | None
    scores: dict[str, ItemScore]


class ScoreAnswer(BaseModel):
    """The results of all edits, in their order."""

    results: list[ItemResult]


class ScorerDescription(BaseModel):
    """A served scorer."""

    name: str
    range: tuple[float | None, float | None] = Field(description="lowest and highest score; null: unbounded")
    direction: str = Field(description="higher: a higher score is better")
    required_fields: list[str] = Field(
        description="fields that an item needs besides the images and the text"
    )
    models: list[str]
    device: str
    fingerprint: str
    family: str = Field(description="scorers of one family measure alike")
    paper: str


class ScorersAnswer(BaseModel):
    """All served scorers."""

    scorers: list[ScorerDescription]


class Health(BaseModel):
    """The state of the server."""

    status: str = Field(description="ok or loading")
    rewards: dict[str, list[str]] | None = Field(None, description="scorers, as UniRL's client asks for them")


class Problem(BaseModel):
    """Why a request is not served."""

    error: str
