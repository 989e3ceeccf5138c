"""Where things are kept: the cache shared by all checkouts, the state of this checkout."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
"""The checkout this package is installed from (it is only ever installed in place)."""

RUN = REPOSITORY / "run"
"""State of the environment that `up` or `demo` with KEEP=1 left running; ignored by git."""

CONTROLPLANE_MODULE = REPOSITORY / "dev" / "controlplane"
"""The Go module that pins and builds the control plane."""


def cache() -> Path:
    """The folder for built binaries: `$XDG_CACHE_HOME/streamhold`, by default `~/.cache/streamhold`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "streamhold"
