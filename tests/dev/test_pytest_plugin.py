"""The fixtures as a test session sees them, run by a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from streamhold_dev import folders


def run_pytest(folder: Path, program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_inner.py").write_text(textwrap.dedent(program))
    (folder / "pytest.ini").write_text("[pytest]\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "STREAMHOLD_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "streamhold_dev.pytest_plugin", "-p", "no:randomly", *arguments, "."],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def test_all_workers_share_one_control_plane_that_ends_with_the_session(tmp_path: Path) -> None:
    program = """
        import os, pathlib, pytest

        @pytest.mark.parametrize("number", range(4))
        def test_which(number, control_plane, namespace, worker_id):
            assert namespace in control_plane.kubectl("get", "namespaces")
            pathlib.Path(f"{worker_id}-{number}.txt").write_text(control_plane.server + " " + str(control_plane.folder))
    """
    done = run_pytest(tmp_path, program, "-n", "2", "--dist", "load")

    assert done.returncode == 0, done.stdout
    notes = list(tmp_path.glob("*.txt"))
    assert {note.name.split("-")[0] for note in notes} == {"gw0", "gw1"}
    [(_, folder)] = {tuple(note.read_text().split()) for note in notes}
    assert not Path(folder).exists()
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert folder not in processes


def test_a_missing_flavour_is_skipped_here_and_fails_in_ci(tmp_path: Path) -> None:
    program = """
        import pytest
        from streamhold_dev.flavours import FLAVOURS, Flavour

        FLAVOURS["redis-6.2"] = Flavour("redis-6.2", "get it somewhere", "no_such_package")

        def test_runs(any_redis_server):
            assert any_redis_server.cli("PING")
    """
    here = run_pytest(tmp_path, program, "-k", "6.2", "-rs", CI="")
    in_ci = run_pytest(tmp_path, program, "-k", "6.2", CI="true")

    assert "1 skipped" in here.stdout
    assert "get it somewhere" in here.stdout
    assert here.returncode == 0
    assert re.search(r"FlavourMissing: no redis-6\.2 server", in_ci.stdout)
    assert in_ci.returncode == 1


def test_each_test_has_a_key_prefix_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    program = """
        import pytest
        seen = []

        @pytest.mark.parametrize("number", range(2))
        def test_writes(number, redis_server, key_prefix):
            redis_server.cli("SET", f"{key_prefix}:a", 1)
            seen.append(key_prefix)

        def test_nothing_is_left(redis_server):
            assert len(set(seen)) == 2
            assert redis_server.cli("DBSIZE") == 0
    """
    done = run_pytest(tmp_path, program)

    assert done.returncode == 0, done.stdout


def test_crds_are_those_of_the_repository(crds: list[Path], control_plane) -> None:
    assert {file.parent for file in crds} == {folders.REPOSITORY / "crds"}
    assert "streamtopics.streamhold.dev" in control_plane.kubectl("get", "crds", "-o", "name")
