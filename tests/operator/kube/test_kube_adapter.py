"""What the operator's own way to the API server makes of a real one."""

from __future__ import annotations

import datetime

import pytest
from kubernetes.aio.client import Configuration

from streamhold_dev.controlplane import ControlPlane
from streamhold_operator.adapters.kube import Kube

pytestmark = pytest.mark.anyio
HOUR = datetime.timedelta(hours=1)


@pytest.mark.parametrize("skew", [-HOUR, datetime.timedelta(), HOUR], ids=["late", "right", "early"])
async def test_times_are_told_by_the_clock_of_the_api_server(
    control_plane: ControlPlane, skew: datetime.timedelta
) -> None:
    configuration = Configuration(host=control_plane.server)
    configuration.ssl_ca_cert = str(control_plane.ca_file)
    configuration.api_key["BearerToken"] = f"Bearer {control_plane.token}"
    kube = Kube(configuration, clock=lambda: datetime.datetime.now(datetime.UTC) + skew)
    try:
        assert await kube.get("Namespace", None, "default")
        assert abs(kube.time() - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(seconds=5)
    finally:
        await kube.aclose()
