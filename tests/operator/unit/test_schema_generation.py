"""The generator of the CRDs: what is checked in is what it writes, and it raises on what API servers refuse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from streamhold_operator.api import schema
from streamhold_operator.api.base import KubeModel
from streamhold_operator.api.markers import LIST_ATOMIC, Cel, list_map
from streamhold_operator.api.structural import NotStructural, structural

ROOT = Path(__file__).parents[3]


class Loop(KubeModel):
    field: str | int


class NoBound(KubeModel):
    field: str


class NoListType(KubeModel):
    field: Annotated[tuple[bool, ...], Field(max_length=1)]


class NoListBound(KubeModel):
    field: Annotated[tuple[bool, ...], LIST_ATOMIC]


class Item(KubeModel):
    name: Annotated[str, Field(max_length=1)] | None = None


class OptionalKey(KubeModel):
    field: Annotated[tuple[Item, ...], list_map("name"), Field(max_length=1)]


class NoMapBound(KubeModel):
    field: Mapping[str, bool]


class FreeMap(KubeModel):
    field: Annotated[dict[str, object], Field(max_length=3)]


class Exclusive(KubeModel):
    field: Annotated[int, Field(gt=0)]


class Closed(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    field: bool


class FixedTuple(KubeModel):
    field: Annotated[tuple[bool, bool], LIST_ATOMIC]


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (Loop, "field: a union (anyOf) has no structural form"),
        (NoBound, "field: a string needs max_length"),
        (NoListType, "field: a list needs list_map"),
        (NoListBound, "field: a list needs max_length"),
        (OptionalKey, "field: the list's keys must be required members of its items: name"),
        (NoMapBound, "field: a map needs max_length"),
        (FreeMap, "field: a map needs a schema for its values"),
        (Exclusive, "field: exclusiveMinimum is not part of a structural schema"),
        (Closed, ".: additionalProperties beside properties is refused"),
        (FixedTuple, "field: prefixItems is not part of a structural schema"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_generator_raises_on_what_the_api_server_refuses(model: type[BaseModel], complaint: str) -> None:
    with pytest.raises(NotStructural) as refused:
        structural(model.model_json_schema())
    assert complaint in str(refused.value)


def test_a_rule_of_a_type_and_one_of_its_use_are_both_kept() -> None:
    short = Annotated[str, Field(max_length=3), Cel("self != 'a'", "not a")]

    class Uses(KubeModel):
        field: Annotated[short | None, Cel("self != 'b'", "not b")] = None

    rules = structural(Uses.model_json_schema())["properties"]["field"]["x-kubernetes-validations"]
    assert [rule["message"] for rule in rules] == ["not a", "not b"]


def test_no_default_and_no_leftover_of_pydantic_is_in_a_crd() -> None:
    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for child in value.values() for key in keys(child)}
        return {key for child in value for key in keys(child)} if isinstance(value, list) else set()

    for resource in schema.RESOURCES:
        assert keys(schema.crd(resource)) & {"default", "title", "$ref", "$defs", "anyOf"} == set()


def test_every_field_is_described() -> None:
    def undescribed(node: Mapping[str, object], path: str) -> list[str]:
        properties: Mapping[str, Mapping[str, object]] = node.get("properties", {})  # type: ignore[assignment]
        missing = [f"{path}.{name}" for name, child in properties.items() if not child.get("description")]
        for name, child in properties.items():
            missing += undescribed(child, f"{path}.{name}")
        if isinstance(node.get("items"), dict):
            missing += undescribed(node["items"], f"{path}[]")  # type: ignore[arg-type]
        return missing

    for resource in schema.RESOURCES:
        whole = schema.crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert undescribed(whole["properties"]["spec"], "spec") == []
        assert undescribed(whole["properties"]["status"], "status") == []


def test_the_checked_in_crds_are_what_the_models_say() -> None:
    assert schema.stale(ROOT) == [], "run `make crds` and commit what it writes"


def test_check_fails_with_a_diff_when_a_file_is_stale_missing_or_left_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["--check", "--root", str(tmp_path)]
    assert schema.main(["--root", str(tmp_path)]) == 0
    assert schema.main(check) == 0
    (tmp_path / "crds/leasepolicies.streamhold.dev.yaml").unlink()
    (tmp_path / "crds/old.yaml").write_text("a: b\n")
    stale = tmp_path / "charts/streamhold/templates/crds/streamtopics.streamhold.dev.yaml"
    stale.write_text(stale.read_text().replace("stopic", "topic"))
    capsys.readouterr()
    assert schema.main(check) == 1
    said = capsys.readouterr().out
    assert "-    - topic\n" in said
    assert "+    - stopic\n" in said
    assert "+++ crds/leasepolicies.streamhold.dev.yaml (generated)" in said
    assert "crds/old.yaml: belongs to no kind; delete it" in said
    assert "make crds" in said
    assert schema.main(["--root", str(tmp_path)]) == 0
    assert schema.main(check) == 0


def test_the_files_are_yaml_and_the_chart_has_the_same_definitions() -> None:
    for path, text in schema.files().items():
        if path.parts[0] == "crds":
            assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"
        else:
            assert text.count("{{") == text.count("}}") == 4
            plain = "\n".join(line for line in text.splitlines() if "{{" not in line)
            definition = yaml.safe_load(plain)
            assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
            assert definition == yaml.safe_load(schema.files()[Path("crds") / path.name])
