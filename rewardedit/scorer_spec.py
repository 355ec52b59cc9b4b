"""Scorer specs: "clip_d", "clip_d:0.7,l1:0.3", or a mapping with each scorer's weight and options.

No scorer is imported or loaded here, so that a command line can be parsed without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewardedit.language.endpoint_settings import refuse_secrets

ScorerSpec = str | dict[str, Any]  # as written in recipes


LOWER_OF = "lower_of"  # the scorer that takes the lowest of others


@dataclass(frozen=True)
class Term:
    """One scorer of a spec."""

    weight: float | None  # None: the only scorer of its spec, with an unweighted score
    options: dict[str, Any]  # options of its `from_pretrained` or constructor


def read_spec(spec: str | Mapping[str, Any]) -> dict[str, Term]:
    """The scorers of a spec by name, e.g. of "clip_d:0.7,l1:0.3" or {"vifi_clip": {"checkpoint":
    "runs/x/scorer"}}.

    Raises:
        ValueError: on a malformed sum, or if an option may hold an endpoint's key: specs are written to
            files.
    """
    terms = _read_text(spec) if isinstance(spec, str) else _read_mapping(spec)
    weights = [term.weight for term in terms.values()]
    if weights != [None] and (not weights or None in weights):
        raise ValueError(f"scorer {spec!r}: {_EXPECTED}")
    return terms


_EXPECTED = (
    "expected a sum such as clip_d:0.7,l1:0.3, each scorer once with its weight, "
    "or {clip_d: {weight: 0.7}, l1: {weight: 0.3, region: outside}}"
)


def _read_text(spec: str) -> dict[str, Term]:
    words = list(map(str.strip, spec.split(",")))
    if len(words) == 1 and _weight(words[0]) is None:
        return {words[0]: Term(None, {})}
    terms = {word.rsplit(":", 1)[0]: Term(_weight(word), {}) for word in words}
    if len(terms) < len(words):
        raise ValueError(f"scorer {spec!r}: {_EXPECTED}")
    return terms


def _weight(word: str) -> float | None:
    try:
        return float(word.rsplit(":", 1)[1])
    except (IndexError, ValueError):
        return None


def _read_mapping(spec: Mapping[str, Any]) -> dict[str, Term]:
    terms = {}
    for name, values in spec.items():
        if name == LOWER_OF:
            values = _members(values)
        if not isinstance(values, Mapping):
            raise ValueError(
                f"scorer {name}: expected its weight and options, such as {{weight: 0.7}}; got {values!r}"
            )
        weight = values.get("weight")
        if weight is not None and (isinstance(weight, bool) or not isinstance(weight, int | float)):
            raise ValueError(f"scorer {name}: weight: expected a number; got {weight!r}")
        options = dict(values)
        options.pop("weight", None)
        refuse_secrets(options)
        terms[name] = Term(None if weight is None else float(weight), options)

    return terms


def _members(values: Any) -> Any:
    """Converts {lower_of: [a, b]} to {lower_of: {scorers: [a, b]}}, with each member in canonical form."""
    values = {"scorers": values} if isinstance(values, list | tuple) else values
    if not isinstance(values, Mapping) or "scorers" not in values:
        return values
    return {**values, "scorers": list(map(resolve_spec, values["scorers"]))}


def all_terms(spec: str | Mapping[str, Any]) -> list[tuple[str, Term]]:
    """The elementary scorers of a spec: `lower_of` is replaced by its members."""
    terms = []
    for name, term in read_spec(spec).items():
        if name == LOWER_OF:
            for member in term.options.get("scorers", ()):
                terms += all_terms(member)
        else:
            terms.append((name, term))
    return terms


def resolve_spec(spec: str | Mapping[str, Any]) -> ScorerSpec:
    """Canonical form of a spec: its short string, or a mapping if a scorer has options.

    Two notations of the same scorer are equal after they are resolved.

    Raises:
        ValueError: on a malformed sum.
    """
    terms = read_spec(spec)
    if not any(term.options for term in terms.values()):
        return spec_name(spec)
    return as_mapping(spec)


def with_options(spec: str | Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> ScorerSpec:
    """The spec with options for its scorers by their names; those that it gives itself win."""
    terms = {name: {**options.get(name, {}), **values} for name, values in as_mapping(spec).items()}
    if LOWER_OF in terms:
        members = terms[LOWER_OF].get("scorers", ())
        terms[LOWER_OF]["scorers"] = [with_options(member, options) for member in members]
    return resolve_spec(terms)


def as_mapping(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    """The spec as {name: {weight: …, option: …}}; the weight of a single scorer is left out."""
    terms = {}
    for name, term in read_spec(spec).items():
        weight = {} if term.weight is None else {"weight": term.weight}
        terms[name] = weight | term.options
    return terms


def spec_name(spec: str | Mapping[str, Any]) -> str:
    """Name of a spec in results: its short string, without options."""
    terms = read_spec(spec)
    return ",".join(name + _suffix(term.weight) for name, term in terms.items())


def full_name(spec: str | Mapping[str, Any]) -> str:
    """Name of a spec among several of the same scorer: its short string with all options, e.g.
    "l1(region=outside)".
    """
    terms = []
    for name, term in read_spec(spec).items():
        options = ", ".join(f"{key}={value}" for key, value in sorted(term.options.items()))
        weight = _suffix(term.weight)
        terms.append(f"{name}({options}){weight}" if options else name + weight)
    return ",".join(terms)


def _suffix(weight: float | None) -> str:
    return "" if weight is None else f":{weight!r}".removesuffix(".0")
