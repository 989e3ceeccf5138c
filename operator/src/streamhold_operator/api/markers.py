"""What a field tells the API server beyond its type: CEL rules and list types.

The markers stand in `Annotated[…]` and write Kubernetes' extensions into the JSON schema that pydantic makes;
`schema.py` turns that into a CRD. pydantic itself does not run CEL: the API server does, so the rules hold even while
no operator runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, GetJsonSchemaHandler, JsonValue
from pydantic_core import CoreSchema

VALIDATIONS = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Cel:
    """A CEL rule of the API server, with the sentence a user reads when it refuses."""

    rule: str
    message: str

    def as_schema(self) -> dict[str, str]:
        """The entry of `x-kubernetes-validations`."""
        return {"rule": self.rule, "message": self.message}

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = dict(handler(core))
        schema[VALIDATIONS] = [*schema.get(VALIDATIONS, []), self.as_schema()]
        return schema


@dataclass(frozen=True, slots=True)
class _ListType:
    name: str
    keys: tuple[str, ...] = ()

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = dict(handler(core))
        schema["x-kubernetes-list-type"] = self.name
        if self.keys:
            schema["x-kubernetes-list-map-keys"] = list(self.keys)
        return schema


def list_map(*keys: str) -> _ListType:
    """A list whose items are told apart by these required members; the API server refuses duplicates."""
    return _ListType("map", keys)


LIST_SET = _ListType("set")
"""A list of distinct scalars; the API server refuses duplicates."""

LIST_ATOMIC = _ListType("atomic")
"""A list that is replaced as a whole."""


def rules(*cel: Cel) -> ConfigDict:
    """A `model_config` with rules over the whole object of the model."""
    return ConfigDict(json_schema_extra={VALIDATIONS: [dict[str, JsonValue](rule.as_schema()) for rule in cel]})


def immutable(field: str) -> Cel:
    """A rule for an optional field that can be neither changed nor set nor unset later."""
    return Cel(
        f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        f"{field} is immutable: delete the object and create it again to change it",
    )
