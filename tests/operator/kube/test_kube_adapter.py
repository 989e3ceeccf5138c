"""What the operator's own way to the API server makes of a real one."""

from __future__ import annotations

import datetime
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from kubernetes.aio.client import Configuration

from streamhold_dev.controlplane import ControlPlane
from streamhold_operator.adapters.kube import ApiError, Kube

pytestmark = pytest.mark.anyio
HOUR = datetime.timedelta(hours=1)


def as_admin(control_plane: ControlPlane, skew: datetime.timedelta = datetime.timedelta()) -> Kube:
    configuration = Configuration(host=control_plane.server)
    configuration.ssl_ca_cert = str(control_plane.ca_file)
    configuration.api_key["BearerToken"] = f"Bearer {control_plane.token}"
    return Kube(configuration, clock=lambda: datetime.datetime.now(datetime.UTC) + skew)


@pytest.mark.parametrize("skew", [-HOUR, datetime.timedelta(), HOUR], ids=["late", "right", "early"])
async def test_times_are_told_by_the_clock_of_the_api_server(
    control_plane: ControlPlane, skew: datetime.timedelta
) -> None:
    kube = as_admin(control_plane, skew)
    try:
        assert await kube.get("Namespace", None, "default")
        assert abs(kube.time() - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(seconds=5)
    finally:
        await kube.aclose()


async def test_a_status_meant_for_an_object_never_reaches_its_namesake(
    control_plane: ControlPlane, namespace: str, crds: list[Path]
) -> None:
    spec = {"connectionRef": {"name": "main"}}
    made = {"apiVersion": "streamhold.dev/v1alpha1", "kind": "StreamTopic", "metadata": {"name": "t"}, "spec": spec}
    kube = as_admin(control_plane)
    try:
        await anyio.to_thread.run_sync(lambda: control_plane.apply(made, namespace=namespace))
        before = await kube.get("StreamTopic", namespace, "t")
        assert before is not None
        await anyio.to_thread.run_sync(lambda: control_plane.kubectl("delete", "stopic", "t", "-n", namespace))
        await anyio.to_thread.run_sync(lambda: control_plane.apply(made, namespace=namespace))
        with pytest.raises(ApiError) as refused:
            await kube.apply_status(before, {"effectiveName": "t"})
        assert refused.value.status == 409
        after = await kube.get("StreamTopic", namespace, "t")
        assert after is not None
        assert "status" not in after
    finally:
        await kube.aclose()
