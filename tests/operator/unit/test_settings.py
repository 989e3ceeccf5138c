"""Settings: flags over environment variables over defaults, each documented, each checked."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from streamhold_operator.settings import Settings, SettingsError, parse_settings


def test_without_anything_the_defaults_hold() -> None:
    assert parse_settings([], {}) == Settings()


def test_an_environment_variable_sets_and_a_flag_wins_over_it() -> None:
    environment = {"STREAMHOLD_WORKERS": "3", "STREAMHOLD_NAMESPACES": "shop, billing"}
    assert parse_settings([], environment) == Settings(workers=3, namespaces=("shop", "billing"))
    assert parse_settings(["--workers", "5"], environment).workers == 5


def test_help_names_every_flag_and_its_environment_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_settings(["--help"], {})
    shown = capsys.readouterr().out
    assert stopped.value.code == 0
    for field in fields(Settings):
        assert f"--{field.name.replace('_', '-')}" in shown
        assert f"STREAMHOLD_{field.name.upper()}" in shown.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--workers", "0", "--workers=0: must be 1 to 256"),
        ("--workers", "many", "--workers=many (or STREAMHOLD_WORKERS): must be a number"),
        ("--resync-interval", "61", "--resync-interval=61.0: must be 1 to 60 seconds"),
        ("--compare-interval", "0", "--compare-interval=0.0"),
        ("--metrics-port", "70000", "--metrics-port=70000: must be a port"),
        ("--liveness-port", "-1", "--liveness-port=-1: must be a port"),
        ("--log-format", "xml", "--log-format=xml: must be text or json"),
        ("--log-level", "loud", "--log-level=loud: must be debug"),
        ("--cluster-id", "a/b", "namespaces and cluster-id"),
        ("--namespaces", "a,team-*", "namespaces and cluster-id"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(flag: str, value: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings([f"{flag}={value}"], {})
    assert told in str(refused.value)


def test_a_kubeconfig_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="must be an existing file"):
        parse_settings(["--kubeconfig", str(tmp_path / "none")], {})
