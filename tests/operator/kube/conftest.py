"""Fixtures of the tests that ask the real API server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamhold_dev.controlplane import ControlPlane
from support.crd_rules import Admission


@pytest.fixture(scope="session")
def admission(control_plane: ControlPlane, crds: list[Path]) -> Iterator[Admission]:
    """The API server's opinion on objects; it stores none, but for the moment in which it is asked about a change."""
    namespace = f"crds-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", namespace)
    asked = Admission(control_plane, namespace)
    yield asked
    asked.close()
    control_plane.kubectl("delete", "namespace", namespace, "--wait=false")
