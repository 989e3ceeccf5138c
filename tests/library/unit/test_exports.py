"""What the package promises is what it lists, and nothing else is public."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

import streamhold
from streamhold import errors, types

SOURCE = Path(streamhold.__file__).parent


def test_all_lists_exactly_the_public_namespace() -> None:
    public = {
        name
        for name, value in vars(streamhold).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(streamhold.__all__) == public
    assert list(streamhold.__all__) == sorted(streamhold.__all__)


def test_every_error_and_type_is_reachable_from_the_package() -> None:
    for module in (errors, types):
        missing = [name for name in module.__all__ if getattr(streamhold, name, None) is not getattr(module, name)]
        assert missing == []


def test_everything_public_says_what_it_is() -> None:
    documented = [name for name in streamhold.__all__ if isinstance(getattr(streamhold, name), type | type(len))]
    assert [name for name in documented if not getattr(streamhold, name).__doc__] == []


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_package_has_no_import_of_what_it_must_not_need(path: Path) -> None:
    forbidden = {"kubernetes", "kopf", "pydantic", "streamhold_operator", "streamhold_dev"}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & forbidden


def test_public_modules_import_alone() -> None:
    for name in ("errors", "types", "keys"):
        assert importlib.import_module(f"streamhold.{name}").__all__
