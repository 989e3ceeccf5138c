"""The table of values in the chart's README, made from the comments in values.yaml.

PYTHONPATH=tests .venv/bin/python -m support.chart_values        write it
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts/streamhold"
_BEGIN, _END = "<!-- values -->\n", "<!-- end of values -->\n"


def documented() -> Iterator[tuple[str, Any, str]]:
    """Each value that has a comment above it: its path, default and comment."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    comment: list[str] = []
    parents: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
            continue
        if comment and ":" in stripped:
            depth = (len(line) - len(line.lstrip())) // 2
            path = [*parents[:depth], stripped.split(":", 1)[0]]
            yield ".".join(path), _look_up(defaults, path), " ".join(comment)
        if line and not line[0].isspace() and ":" in line:
            parents = [line.split(":", 1)[0]]
        comment = []


def leaves(values: Any, path: str = "") -> Iterator[str]:
    """The path of each value that is not an object with members."""
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from leaves(value, f"{path}.{name}".lstrip("."))
    else:
        yield path


def table() -> str:
    """The table as Markdown."""
    rows = [
        f"| `{path}` | `{json.dumps(default)}` | {comment.replace('|', chr(92) + '|')} |"
        for path, default, comment in documented()
    ]
    return "\n".join(["| value | default | what it is |", "|---|---|---|", *rows]) + "\n"


def readme() -> str:
    """The README as it should be."""
    text = (CHART / "README.md").read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    return f"{before}{_BEGIN}{table()}{_END}{rest.split(_END)[1]}"


def _look_up(values: Any, path: list[str]) -> Any:
    for name in path:
        values = values[name]
    return values


if __name__ == "__main__":
    (CHART / "README.md").write_text(readme(), encoding="utf-8")
