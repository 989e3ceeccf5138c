"""Turn pydantic's JSON schema into the structural schema that the API server accepts.

References are put in place, `X | None` becomes an optional property, titles and defaults go. What API servers refuse,
or what would make CEL too costly for them, raises here: better while generating than at the user's `kubectl apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhold_operator.api.markers import VALIDATIONS

Schema = dict[str, Any]

_KEPT = frozenset(
    {
        "additionalProperties", "description", "enum", "format", "items", "maxItems", "maxLength", "maxProperties",
        "maximum", "minItems", "minLength", "minProperties", "minimum", "pattern", "properties", "required", "type",
        "x-kubernetes-list-map-keys", "x-kubernetes-list-type", VALIDATIONS,
    }
)  # fmt: skip
_DROPPED = frozenset({"title", "default", "$defs"})


class NotStructural(ValueError):
    """A model whose schema the API server would refuse; the message names the place and what to write instead."""


def structural(schema: Mapping[str, Any]) -> Schema:
    """The structural form of a schema that `model_json_schema` made.

    Raises:
        NotStructural: the API server would refuse the result.
    """
    return _convert(schema, schema.get("$defs", {}), "")


def _convert(schema: Mapping[str, Any], defs: Mapping[str, Any], path: str) -> Schema:
    flat = _resolve(schema, defs, path)
    unknown = set(flat) - _KEPT - _DROPPED
    if unknown:
        raise NotStructural(f"{path or '.'}: {', '.join(sorted(unknown))} is not part of a structural schema")
    result = {key: value for key, value in flat.items() if key in _KEPT}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "properties" in result:
        result["properties"] = {
            name: _convert(child, defs, f"{path}.{name}") for name, child in result["properties"].items()
        }
    if "items" in result:
        result["items"] = _convert(result["items"], defs, f"{path}[]")
    if isinstance(result.get("additionalProperties"), Mapping):
        result["additionalProperties"] = _convert(result["additionalProperties"], defs, f"{path}{{}}")
    _check(result, path or ".")
    return {key: result[key] for key in sorted(result, key=_order)}


def _resolve(schema: Mapping[str, Any], defs: Mapping[str, Any], path: str) -> Schema:
    """Put references in place and unwrap `X | None`; what stands beside a reference wins over what it names."""
    own = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
    if "$ref" in schema:
        inner = _resolve(defs[schema["$ref"].removeprefix("#/$defs/")], defs, path)
    elif "anyOf" in schema:
        choices = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
        if len(choices) != 1:
            raise NotStructural(f"{path or '.'}: a union (anyOf) has no structural form; use one type")
        inner = _resolve(choices[0], defs, path)
    else:
        return own
    merged = {**inner, **own}
    if VALIDATIONS in inner and VALIDATIONS in own:
        merged[VALIDATIONS] = [*inner[VALIDATIONS], *own[VALIDATIONS]]
    return merged


def _check(schema: Schema, path: str) -> None:
    kind = schema.get("type")
    if not isinstance(kind, str):
        raise NotStructural(f"{path}: has no type")
    for bound in ("exclusiveMinimum", "exclusiveMaximum"):
        if bound in schema:
            raise NotStructural(f"{path}: numeric {bound} is refused by the API server; write ge= or le=")
    {"object": _check_object, "array": _check_array, "string": _check_string}.get(kind, _check_nothing)(schema, path)


def _check_object(schema: Schema, path: str) -> None:
    more = schema.get("additionalProperties")
    if more is not None and "properties" in schema:
        raise NotStructural(f"{path}: additionalProperties beside properties is refused; no extra='forbid'")
    if isinstance(more, bool):
        raise NotStructural(f"{path}: a map needs a schema for its values")
    if more is not None and "maxProperties" not in schema:
        raise NotStructural(f"{path}: a map needs max_length, or its CEL rules cost too much")


def _check_array(schema: Schema, path: str) -> None:
    if "x-kubernetes-list-type" not in schema:
        raise NotStructural(f"{path}: a list needs list_map(…), LIST_SET or LIST_ATOMIC")
    if "maxItems" not in schema:
        raise NotStructural(f"{path}: a list needs max_length, or its CEL rules cost too much")
    if "items" not in schema:
        raise NotStructural(f"{path}: a list needs a type for its items")
    missing = set(schema.get("x-kubernetes-list-map-keys", ())) - set(schema["items"].get("required", ()))
    if missing:
        raise NotStructural(
            f"{path}: the list's keys must be required members of its items: {', '.join(sorted(missing))}"
        )


def _check_string(schema: Schema, path: str) -> None:
    if not {"maxLength", "enum", "format"} & set(schema):
        raise NotStructural(f"{path}: a string needs max_length, or its CEL rules cost too much")


def _check_nothing(schema: Schema, path: str) -> None:
    """Numbers and booleans have nothing to go wrong."""


def _order(key: str) -> tuple[int, str]:
    """`type` and `description` first, the nested ones and the rules last: the order in which one reads it."""
    first = ("type", "description")
    last = ("required", "properties", "items", "additionalProperties", VALIDATIONS)
    if key in first:
        return first.index(key), ""
    return (100 + last.index(key), "") if key in last else (50, key)
