"""What the demo does to run programs as pods are run."""

from __future__ import annotations

import base64
from pathlib import Path

from streamhold_dev.demo import programs


def secret(**entries: str) -> dict[str, object]:
    return {"data": {name: base64.b64encode(text.encode()).decode() for name, text in entries.items()}}


def test_a_mounted_secret_reads_as_its_entries(tmp_path: Path) -> None:
    folder = programs.mount(secret(username="shop", password="one"), tmp_path / "binding")
    assert {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith("..")} == {
        "username": "shop",
        "password": "one",
    }


def test_mounting_anew_swaps_all_entries_at_once_and_keeps_one_version(tmp_path: Path) -> None:
    folder = programs.mount(secret(password="one"), tmp_path / "binding")
    before = (folder / "..data").resolve()
    programs.mount(secret(password="two", extra="more"), folder)
    assert (folder / "password").read_text() == "two"
    assert (folder / "extra").read_text() == "more"
    assert not before.exists()
    assert len(list(folder.glob("..version-*"))) == 1
