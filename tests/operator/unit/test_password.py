"""Passwords of clients: made once, rotated in time, the one before accepted through the overlap. Time is passed in."""

from __future__ import annotations

import base64
import datetime
import itertools
from typing import Any

import pytest

from streamhold_operator.domain.client import password_digest
from streamhold_operator.reconcile.password import IMPORT_OVERLAP, PREVIOUS, SET_AT, Password, Rotation, choose

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HOURLY = Rotation(every=3600, overlap=600)


def at(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def a_secret(password: Password) -> dict[str, Any]:
    """The binding Secret that a choice leads to."""
    return {
        "metadata": {"annotations": dict(password.annotations), "creationTimestamp": "2026-01-01T00:00:00Z"},
        "data": {"password": base64.b64encode(password.text.encode()).decode()},
    }


def chosen(existing: dict[str, Any] | None, seconds: float, **options: Any) -> Password:
    numbers = itertools.count(1)
    options = {"username": "shop.app", "imported": None, "rotation": None, **options}
    return choose(existing, now=at(seconds), new=lambda: f"new-{seconds}-{next(numbers)}", **options)


def test_a_first_password_is_made_and_then_kept_for_ever() -> None:
    first = chosen(None, 0)
    assert first.accepted == (password_digest(first.text),)
    assert first.next_change is None
    assert chosen(a_secret(first), 10**9) == first


def test_a_rotation_makes_a_new_one_when_due_and_accepts_both_through_the_overlap() -> None:
    first = chosen(None, 0, rotation=HOURLY)
    assert first.next_change == 3600
    assert chosen(a_secret(first), 3599, rotation=HOURLY).text == first.text
    second = chosen(a_secret(first), 3600, rotation=HOURLY)
    assert second.text != first.text
    assert second.accepted == (password_digest(second.text), password_digest(first.text))
    assert second.next_change == 600
    assert second.annotations[PREVIOUS] == password_digest(first.text)
    during = chosen(a_secret(second), 4199, rotation=HOURLY)
    assert (during.text, during.accepted) == (second.text, second.accepted)
    after = chosen(a_secret(second), 4200, rotation=HOURLY)
    assert after.accepted == (password_digest(second.text),)
    assert after.annotations == second.annotations
    assert after.next_change == 3000


def test_a_rotation_asked_for_later_counts_from_when_the_password_was_set() -> None:
    first = chosen(None, 0)
    assert chosen(a_secret(first), 3601, rotation=HOURLY).text != first.text


def test_a_time_edited_into_nonsense_counts_from_the_secrets_creation() -> None:
    secret = a_secret(chosen(None, 0))
    secret["metadata"]["annotations"][SET_AT] = "yesterday"
    assert chosen(secret, 3599, rotation=HOURLY).next_change == 1


def test_an_imported_password_replaces_the_generated_one_which_works_a_little_longer() -> None:
    first = chosen(None, 0)
    second = chosen(a_secret(first), 100, imported="own")
    assert second.text == "own"
    assert second.accepted == (password_digest("own"), password_digest(first.text))
    assert second.next_change == IMPORT_OVERLAP
    assert chosen(a_secret(second), 100 + IMPORT_OVERLAP, imported="own").accepted == (password_digest("own"),)


def test_a_lost_secret_gets_a_new_password_and_the_lost_one_is_refused() -> None:
    first = chosen(None, 0, rotation=HOURLY)
    second = chosen(None, 100, rotation=HOURLY)
    assert second.text != first.text
    assert second.accepted == (password_digest(second.text),)


@pytest.mark.parametrize("seconds", [0, 1800, 3600, 4000, 4200])
def test_choosing_again_at_the_same_time_changes_nothing(seconds: float) -> None:
    once = chosen(a_secret(chosen(None, 0, rotation=HOURLY)), seconds, rotation=HOURLY)
    again = chosen(a_secret(once), seconds, rotation=HOURLY)
    assert (again.text, again.accepted, again.annotations) == (once.text, once.accepted, once.annotations)


def test_the_password_of_a_shared_login_never_becomes_the_clients_own() -> None:
    def entries(**texts: str) -> dict[str, Any]:
        return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}

    shared = {"metadata": {}, "data": entries(username="default", password="everybodys")}
    own = chosen(shared, 0)
    assert own.text == "new-0-1"
    assert own.accepted == (password_digest(own.text),)
    assert chosen({"metadata": {}, "data": entries(username="shop.app", password="its-own")}, 0).text == "its-own"


@pytest.mark.parametrize("entry", ["//4=", "not base64", ""])
def test_a_password_entry_that_is_no_text_is_replaced(entry: str) -> None:
    edited = a_secret(chosen(None, 0))
    edited["data"]["password"] = entry
    assert chosen(edited, 0).text == "new-0-1"
