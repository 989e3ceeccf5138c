"""The demo is the main job end to end: it has to end well, and to say so only then."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from streamhold_dev import folders


@pytest.mark.timeout(300)
def test_the_demo_declares_provisions_consumes_and_survives_two_kills() -> None:
    command = [sys.executable, "-m", "streamhold_dev", "demo"]
    done = subprocess.run(command, cwd=folders.REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.partition("All of it happened")[2]
    for claim in (
        "the four CRDs are established",
        "the 5 objects are Ready",
        "Redis refuses that user everything else",
        "SIGKILL to worker-1",
        "complete: 1000 orders, 1000 with a receipt",
        "no order is pending",
        "none refused (403)",
        "SIGTERM ended the operator cleanly",
    ):
        assert claim in summary, done.stdout
    tokens = re.search(r"holds the lease, token (\d+).*larger token, (\d+)", summary, re.DOTALL)
    assert tokens is not None, summary
    assert int(tokens[2]) > int(tokens[1])
