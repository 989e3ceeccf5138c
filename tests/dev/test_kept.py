"""An environment that stays after its command: `up` says how to use it, `down` ends it whatever is left of it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from streamhold_dev import kept
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.processes import Process, Server
from streamhold_dev.waiting import eventually_sync


def test_up_stays_until_down(tmp_path: Path) -> None:
    run = tmp_path / "run"
    try:
        said = kept.up(run)
        plane = ControlPlane.attach(run / "up" / "controlplane")
        assert f"export KUBECONFIG={plane.kubeconfig}\n" in said
        [redis] = [Process(**one) for one in json.loads((run / "up" / "kept.json").read_text())]
        assert redis.alive
        with pytest.raises(kept.AlreadyUp, match="make down"):
            kept.up(run)
    finally:
        ended = kept.down(run)

    assert ended == ["up: valkey-9.1", "up: control plane"]
    assert not redis.alive
    assert not plane.alive
    assert not (run / "up").exists()
    assert kept.down(run) == []


def test_down_passes_over_what_has_ended_and_never_ends_a_stranger(tmp_path: Path) -> None:
    gone = Server("gone", ["sleep", "60"], tmp_path / "log")
    stranger = Server("stranger", ["sleep", "60"], tmp_path / "log")
    gone.kill()
    same_number = Process("same number", stranger.pid, stranger.process.started - 1)
    kept.keep(tmp_path / "run" / "demo", [gone.process, same_number])

    assert kept.down(tmp_path / "run") == []

    assert stranger.alive
    stranger.kill()


def test_a_stopped_process_is_ended_too(tmp_path: Path) -> None:
    server = Server("stopped", ["sleep", "60"], tmp_path / "log")
    os.kill(server.pid, signal.SIGSTOP)

    server.process.end()

    eventually_sync(lambda: not server.alive)
