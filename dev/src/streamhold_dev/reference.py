"""`python -m streamhold_dev.reference`: write docs/reference/resources.md from the definitions in crds/.

`kubectl explain streamtopic.spec` shows the same texts in a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from streamhold_dev import folders

PAGE = folders.REPOSITORY / "docs" / "reference" / "resources.md"

_ORDER = ("RedisConnection", "StreamTopic", "LeasePolicy", "CoordinationClient")
_HEAD = """\
# Custom resources

Group `streamhold.dev`, version `v1alpha1`, all in a namespace. Durations are written with h, m, s and ms: `250ms`,
`30s`, `1h30m`. What can be checked is checked by the API server when an object is applied; rules over several fields
are below each table.

<!-- Made from crds/ by `make crds`. -->
"""


def page() -> str:
    """The whole page."""
    crds = [yaml.safe_load(path.read_text()) for path in sorted((folders.REPOSITORY / "crds").glob("*.yaml"))]
    by_kind = {crd["spec"]["names"]["kind"]: crd for crd in crds}
    return _HEAD + "".join(_section(by_kind[kind]) for kind in _ORDER)


def _section(crd: Mapping[str, Any]) -> str:
    names = crd["spec"]["names"]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [
        "",
        f"## {names['kind']}",
        "",
        f"{_text(schema)} Short name `{names['shortNames'][0]}`.",
        "",
        "| field | type | what it is |",
        "|---|---|---|",
    ]
    spec = schema["properties"]["spec"]
    lines += [f"| `spec.{path}` | {_type(field)} | {_cell(field)} |" for path, field in _fields(spec)]
    status = schema["properties"]["status"]
    lines += [f"| `status.{path}` | {_type(field)} | {_cell(field)} |" for path, field in _status(status)]
    rules = [*schema.get("x-kubernetes-validations", ()), *spec.get("x-kubernetes-validations", ())]
    if rules:
        lines += ["", *(f"- {rule['message']}" for rule in rules)]
    return "\n".join(lines) + "\n"


def _status(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, field in _fields(schema):
        if not path.startswith(("conditions", "observedGeneration")):
            yield path, field


def _fields(schema: Mapping[str, Any], base: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every field below, each object and list entry opened."""
    for name, field in schema.get("properties", {}).items():
        path = f"{base}{name}"
        inner = field.get("items", field)
        yield path, {**field, "required": name in schema.get("required", ())}
        if inner.get("properties"):
            yield from _fields(inner, f"{path}[]." if "items" in field else f"{path}.")


def _type(field: Mapping[str, Any]) -> str:
    if "items" in field:
        return f"list of {_type(field['items'])}"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if isinstance(field.get("additionalProperties"), dict):
        return f"map of {_type(field['additionalProperties'])}"
    return str(field["type"])


def _cell(field: Mapping[str, Any]) -> str:
    """What a field is, and in words what it may hold."""
    rules = [*field.get("x-kubernetes-validations", ()), *field.get("items", {}).get("x-kubernetes-validations", ())]
    allowed = [rule["message"] for rule in rules if rule["message"].startswith("must")]
    limits = [f"at least {field['minimum']}"] if "minimum" in field else []
    limits += [f"at most {field['maximum']}"] if "maximum" in field else []
    parts = [*(["Required."] if field["required"] is True else []), _text(field)]
    parts += [f"It {rule}." for rule in allowed]
    parts += [f"It is {' and '.join(limits)}."] if limits else []
    return " ".join(part for part in parts if part).replace("|", "\\|")


def _text(schema: Mapping[str, Any]) -> str:
    return " ".join(str(schema.get("description", "")).split())


def main(path: Path = PAGE) -> None:
    """Write the page."""
    path.write_text(page())


if __name__ == "__main__":
    main()
