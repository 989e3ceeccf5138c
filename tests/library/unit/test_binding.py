"""The binding folder: what it grants, and what is said when it is missing, half-written or not understood."""

from __future__ import annotations

import copy
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamhold._binding import find_binding, load_binding
from streamhold.errors import AccessNotGranted, BindingError, ConfigError, LeaseNotDeclared, TopicNotDeclared


def a_topic(name: str = "orders", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "topic": name,
        "prefix": "streamhold:shop",
        "family": False,
        "access": ["Publish", "Consume"],
        "maxLength": 10000,
        "idleTtlMs": 0,
        "reclaimIntervalMs": 30000,
        "reclaimMinIdleMs": 60000,
        "maxDeliveryAttempts": 5,
        "inFlightTimeoutMs": 0,
        "deadLetter": {"enabled": False, "maxLength": 10000},
        "groups": [{"name": "billing", "startFrom": "Earliest"}],
        **changes,
    }


def a_lease(name: str = "jobs/", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "keys": name,
        "prefix": "streamhold:shop",
        "ttlMs": 15000,
        "renewIntervalMs": 5000,
        "lockDelayMs": 0,
        "fencing": True,
        "maxHoldMs": 0,
        **changes,
    }


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "client": {"namespace": "shop", "name": "checkout"},
        "connection": {"topology": "Standalone", "endpoints": ["127.0.0.1:6379"], "database": 0, "tls": None},
        "topics": [a_topic()],
        "leases": [a_lease()],
        **changes,
    }


def files(content: dict[str, Any] | str | None = None, **changes: str) -> dict[str, str]:
    text = content if isinstance(content, str) else json.dumps(settings() if content is None else content)
    return {
        "type": "redis",
        "provider": "streamhold",
        "username": "shop.checkout",
        "password": "s3cret/@:",
        "streamhold.json": text,
        **changes,
    }


def write(folder: Path, content: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name).write_text(text)
    return folder


def mount(folder: Path, generation: int, content: dict[str, str]) -> None:
    """Write as the kubelet does: a new folder, then one rename that turns `..data` to it; the old one goes."""
    folder.mkdir(exist_ok=True)
    write(folder / f"..{generation}", content)
    (folder / "..data_tmp").symlink_to(f"..{generation}")
    old = (folder / "..data").resolve() if (folder / "..data").exists() else None
    (folder / "..data_tmp").rename(folder / "..data")
    for name in content:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    if old is not None:
        shutil.rmtree(old)


def test_a_whole_folder_is_read(tmp_path: Path) -> None:
    tls = {"topology": "Standalone", "endpoints": ["redis.shop:6380", "[::1]:6379"], "database": 3, "tls": {}}
    binding = load_binding(write(tmp_path, files(settings(connection=tls), **{"ca.crt": "PEM"})))
    assert binding.endpoints == (("redis.shop", 6380), ("::1", 6379))
    assert binding.connection.database == 3
    assert binding.connection.tls is not None
    assert binding.connection.tls.server_name is None
    assert binding.ca_certificate == "PEM"
    assert binding.credentials() == ("shop.checkout", "s3cret/@:")
    assert str(binding.client) == "shop/checkout"
    topic = binding.topic("orders", "Consume")
    assert (topic.topic, topic.prefix, topic.max_length) == ("orders", "streamhold:shop", 10000)
    assert (topic.idle_ttl_ms, topic.reclaim_interval_ms, topic.reclaim_min_idle_ms) == (0, 30000, 60000)
    assert (topic.groups[0].name, topic.groups[0].start_from) == ("billing", "Earliest")
    assert not topic.dead_letter.enabled
    lease = binding.lease("jobs/nightly")
    assert (lease.key, lease.policy.ttl_ms, lease.policy.renew_interval_ms) == ("jobs/nightly", 15000, 5000)


def test_the_password_is_in_no_representation(tmp_path: Path) -> None:
    assert "s3cret" not in repr(load_binding(write(tmp_path, files())))


def test_members_of_a_newer_operator_are_ignored(tmp_path: Path) -> None:
    newer = settings(topics=[a_topic(sharding={"by": "key"})], mood="good")
    newer["connection"]["extra"] = [1]
    assert load_binding(write(tmp_path, files(newer))).topic("orders").topic == "orders"


def test_the_exact_topic_wins_over_a_family_and_the_longest_family_over_others(tmp_path: Path) -> None:
    topics = [
        a_topic("agent.", family=True, maxLength=1),
        a_topic("agent.run.", family=True, maxLength=2),
        a_topic("agent.run.7", maxLength=3),
        a_topic("billing/agent.", topic="agent.", prefix="streamhold:billing", family=True, maxLength=4),
    ]
    binding = load_binding(write(tmp_path, files(settings(topics=topics))))
    seen = {name: binding.topic(name) for name in ("agent.x", "agent.run.8", "agent.run.7", "billing/agent.y")}
    assert {name: grant.max_length for name, grant in seen.items()} == {
        "agent.x": 1,
        "agent.run.8": 2,
        "agent.run.7": 3,
        "billing/agent.y": 4,
    }
    assert seen["agent.run.8"].topic == "agent.run.8"
    assert (seen["billing/agent.y"].prefix, seen["billing/agent.y"].topic) == ("streamhold:billing", "agent.y")


def test_a_lease_key_belongs_to_the_longest_family(tmp_path: Path) -> None:
    leases = [a_lease("jobs/"), a_lease("jobs/eu/", ttlMs=1), a_lease("billing/jobs/", keys="jobs/", prefix="b")]
    binding = load_binding(write(tmp_path, files(settings(leases=leases))))
    assert binding.lease("jobs/eu/x").policy.ttl_ms == 1
    assert binding.lease("jobs/eu").policy.ttl_ms == 15000
    foreign = binding.lease("billing/jobs/x")
    assert (foreign.policy.prefix, foreign.key) == ("b", "jobs/x")


def test_what_is_not_granted_is_refused_by_name(tmp_path: Path) -> None:
    binding = load_binding(write(tmp_path, files()))
    with pytest.raises(TopicNotDeclared, match=r"'invoices'.*shop/checkout.*'orders'"):
        binding.topic("invoices")
    with pytest.raises(TopicNotDeclared, match="'orders2'"):
        binding.topic("orders2")
    with pytest.raises(AccessNotGranted, match=r"'orders'.*Manage.*'Consume', 'Publish'") as refused:
        binding.topic("orders", "Manage")
    assert refused.value.access == "Manage"
    with pytest.raises(LeaseNotDeclared, match=r"'locks/a'.*'jobs/\*'"):
        binding.lease("locks/a")


def test_a_name_that_means_two_topics_is_refused_at_its_use_only(tmp_path: Path) -> None:
    topics = [a_topic("b/x"), a_topic("b/x", topic="x", prefix="streamhold:b"), a_topic("orders")]
    binding = load_binding(write(tmp_path, files(settings(topics=topics))))
    assert binding.topic("orders").topic == "orders"
    with pytest.raises(BindingError, match=r"streamhold\.json.*'b/x'.*more than once"):
        binding.topic("b/x")


@pytest.mark.parametrize("folder", ["a\0b", "x" * 5000, "\udcff"])
def test_a_text_that_names_no_folder_is_an_error_of_ours(folder: str) -> None:
    with pytest.raises(BindingError) as error:
        load_binding(folder)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("missing", ["type", "provider", "username", "password", "streamhold.json"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    content = files()
    del content[missing]
    with pytest.raises(BindingError, match=f"the file {missing} is missing"):
        load_binding(write(tmp_path, content))


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    content = copy.deepcopy(settings())
    change(content)
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", r"streamhold\.json: expected one whole JSON object"),
        ('{"version": 1, "client": {"na', r"streamhold\.json: expected one whole JSON object"),
        ("[]", r"streamhold\.json: Expected `object`, got `array`"),
        ("{}", r"streamhold\.json: .*missing required field `version`"),
        (settings(version=2), r"streamhold\.json: version 2 is not known"),
        (changed(lambda all: all.pop("topics")), "missing required field `topics`"),
        (
            changed(lambda all: all["topics"][0].pop("maxLength")),
            r"missing required field `maxLength` - at `\$.topics\[",
        ),
        (
            changed(lambda all: all["topics"][0].update(maxLength="1")),
            r"Expected `int`, got `str` - at `\$.topics\[.*maxLe",
        ),
        (
            changed(lambda all: all["topics"][0].update(maxLength=-1)),
            r"Expected `int` >= 0 - at `\$.topics\[.*maxLength`",
        ),
        (changed(lambda all: all["leases"][0].update(ttlMs=0)), r"Expected `int` >= 1 - at `\$.leases\[.*ttlMs`"),
        (changed(lambda all: all["connection"].update(endpoints=[])), r"length >= 1 - at `\$.connection.endpoints`"),
        (
            changed(lambda all: all["connection"].update(endpoints=["redis"])),
            r"endpoints: expected host:port, found 'redis'",
        ),
        (changed(lambda all: all["connection"].update(endpoints=["r:99999"])), "expected host:port, found 'r:99999'"),
        (changed(lambda all: all["topics"][0]["groups"][0].update(startFrom="Now")), r"Invalid enum value 'Now'"),
    ],
)
def test_settings_that_are_not_understood_are_named_with_what_is_expected(
    tmp_path: Path, content: dict[str, Any] | str, said: str
) -> None:
    with pytest.raises(BindingError, match=said) as refused:
        load_binding(write(tmp_path, files(content)))
    assert str(tmp_path) in str(refused.value)
    assert isinstance(refused.value, ConfigError)


def test_several_missing_files_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "type").write_text("redis")
    with pytest.raises(BindingError, match=r"the files provider, .*streamhold\.json are missing \(there: type\)"):
        load_binding(tmp_path)


def test_a_folder_that_looks_like_a_server_is_told_to_be_written_as_a_url() -> None:
    with pytest.raises(BindingError, match=r"for a server write redis://127\.0\.0\.1:6379"):
        load_binding("127.0.0.1:6379")


def test_a_missing_folder_says_which_variable_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMHOLD_BINDING", str(tmp_path / "nowhere"))
    with pytest.raises(BindingError, match="STREAMHOLD_BINDING names it"):
        load_binding(find_binding())


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match="type: expected 'redis', found 'kafka'"):
        load_binding(write(tmp_path / "a", files(type="kafka")))
    with pytest.raises(BindingError, match="provider: expected 'streamhold', found 'bitnami'"):
        load_binding(write(tmp_path / "b", files(provider="bitnami\n")))
    with pytest.raises(BindingError, match="the folder does not exist"):
        load_binding(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(BindingError, match="expected a folder"):
        load_binding(tmp_path / "file")
    write(tmp_path / "c", files())
    (tmp_path / "c" / "username").write_bytes(b"\xff")
    with pytest.raises(BindingError, match="username: expected UTF-8"):
        load_binding(tmp_path / "c")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    content = files()
    del content["password"]
    (write(tmp_path, content) / "password").mkdir()
    with pytest.raises(BindingError, match=r"password: cannot be read \(Is a directory\)"):
        load_binding(tmp_path)


def test_a_bad_certificate_is_named(tmp_path: Path) -> None:
    content = changed(lambda all: all["connection"].update(tls={"serverName": "redis"}))
    with pytest.raises(BindingError, match=r"ca\.crt: expected PEM"):
        load_binding(write(tmp_path, files(content, **{"ca.crt": "nonsense"}))).ssl_context()
    assert load_binding(write(tmp_path / "plain", files())).ssl_context() is None


def test_credentials_are_read_anew_at_each_call(tmp_path: Path) -> None:
    mount(tmp_path / "m", 1, files())
    binding = load_binding(tmp_path / "m")
    mount(tmp_path / "m", 2, files(username="", password="rotated"))
    assert binding.credentials() == (None, "rotated")
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(BindingError, match="does not exist"):
        binding.credentials()


def test_what_is_read_is_of_one_moment_while_the_kubelet_swaps_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "m"

    def generation(number: int) -> dict[str, str]:
        content = settings(client={"namespace": "shop", "name": f"c{number}"}, connection={
            "topology": "Standalone", "endpoints": [f"h{number}:6379"], "database": number, "tls": None,
        })  # fmt: skip
        return files(content, username=f"u{number}", password=f"p{number}")

    mount(folder, 0, generation(0))
    binding = load_binding(folder)
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.wait(0.001):
            swaps += 1
            mount(folder, swaps, generation(swaps))

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        seen = set()
        for _ in range(300):
            username, password = binding.credentials()
            assert username is not None
            assert password == f"p{username[1:]}"
            seen.add(username)
            now = load_binding(folder)
            assert now.client.name == f"c{now.connection.database}"
    finally:
        stop.set()
        swapping.join()
    assert len(seen) > 1


def test_the_environment_names_the_folder(tmp_path: Path) -> None:
    ours = write(tmp_path / "checkout", files())
    write(tmp_path / "pg", {"type": "postgresql", "provider": "streamhold"})
    write(tmp_path / "other", {"type": "redis", "provider": "bitnami"})
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert find_binding({"SERVICE_BINDING_ROOT": str(tmp_path)}) == ours
    assert find_binding({"STREAMHOLD_BINDING": "/x", "SERVICE_BINDING_ROOT": str(tmp_path)}) == Path("/x")
    write(tmp_path / "second", files())
    with pytest.raises(BindingError, match="several folders fit: checkout, second; set STREAMHOLD_BINDING"):
        find_binding({"SERVICE_BINDING_ROOT": str(tmp_path)})


def test_no_folder_in_the_environment_says_how_to_mount_one(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match=r"mount the Secret.*STREAMHOLD_BINDING.*SERVICE_BINDING_ROOT"):
        find_binding({})
    with pytest.raises(BindingError, match="no folder below"):
        find_binding({"SERVICE_BINDING_ROOT": str(tmp_path)})
    with pytest.raises(BindingError, match="cannot be listed"):
        find_binding({"SERVICE_BINDING_ROOT": str(tmp_path / "none")})
