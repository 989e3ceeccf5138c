"""The benchmarks run; how fast is no matter of a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streamhold_dev import folders


@pytest.mark.slow
def test_the_benchmarks_measure_every_case_and_write_their_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=folders.REPOSITORY, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads(file.read_text())["cases"]
    assert set(cases) == {
        "publish, 100 at once", "publish, one by one", "consume + ack", "lease acquire + release",
    }  # fmt: skip
    for case in cases.values():
        assert all(rate > 0 for rate in case["rates"].values())
        assert set(case["targets"]) - {"redis-benchmark -c 1 -P 100"} <= set(case["ratios"])
        assert set(case["ratios"]) < set(case["rates"])
