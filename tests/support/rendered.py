"""Render the chart with values, and find objects in what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from streamhold_dev import binaries, processes
from support.chart_values import CHART

Object = dict[str, Any]


class Refused(Exception):
    """helm refused the values; the text is its complaint."""


def render(values: Mapping[str, Any] | None = None, *, release: str = "sh", namespace: str = "system") -> list[Object]:
    """The objects that `helm template` makes.

    Raises:
        Refused: with helm's complaint about the values.
    """
    command: list[str | Path] = [
        binaries.need("helm"),
        "template",
        release,
        CHART,
        "--namespace",
        namespace,
        "--values",
        "-",
    ]
    try:
        text = processes.run(command, input=yaml.safe_dump(dict(values or {})))
    except processes.CommandFailed as failed:
        raise Refused(failed.stderr) from failed
    return [thing for thing in yaml.safe_load_all(text) if thing]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """The objects of that kind."""
    return [thing for thing in objects if thing["kind"] == kind]


def the(objects: list[Object], kind: str) -> Object:
    """The one object of that kind."""
    (found,) = of_kind(objects, kind)
    return found


def container(objects: list[Object]) -> Object:
    """The operator's container."""
    (found,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def grants(role: Object) -> set[tuple[str, str]]:
    """What a role grants, as (verb, resource.group)."""
    return {
        (verb, f"{resource}.{group}".rstrip("."))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
