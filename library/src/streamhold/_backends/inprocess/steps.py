"""The atomic steps that Redis runs as Lua scripts, under the same names and with the same arguments and replies.

`_backends/redis/lua/<name>.lua` says what each is for; the tests hold both against the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from streamhold._backends.inprocess.keyspace import Keyspace, Refused
from streamhold._backends.inprocess.streams import NOTHING, Group, entry_id, write_id

__all__ = ["run"]

_Keys: TypeAlias = Sequence[bytes]
_Args: TypeAlias = Sequence[bytes]
_Step: TypeAlias = Callable[[Keyspace, _Keys, _Args], Any]


def run(space: Keyspace, name: str, keys: _Keys, args: _Args) -> Any:
    """Run one step.

    Raises:
        Refused: as its commands.
    """
    space.drop_expired()
    return _STEPS[name](space, keys, args)


# ---- streams ----


def _group_open(space: Keyspace, keys: _Keys, args: _Args) -> list[Any]:
    name, start, ttl_ms, make = args[0], args[1], int(args[2]), args[3] == b"1"
    stream = space.stream(keys[0])
    if stream is None and not make:
        return [-1, write_id(NOTHING)]
    if stream is not None and name in stream.groups:
        return [0, write_id(stream.groups[name].position)]
    stream = space.make_stream(keys[0])
    # A stream that ends before the entry we saw last is another one than we read: it starts over.
    position = stream.last if start == b"$" else entry_id(start)
    group = stream.groups[name] = Group(NOTHING if position > stream.last else position)
    if ttl_ms:
        space.expire(keys[0], ttl_ms)
    return [1, write_id(group.position)]


def _nack(space: Keyspace, keys: _Keys, args: _Args) -> int:
    name, consumer, entry = args[0], args[1], entry_id(args[2])
    max_length, ttl_ms = int(args[3]), int(args[4])
    _, group = space.group(keys[0], name)
    pending = group.pending.get(entry)
    if pending is None or pending.consumer != consumer:
        return 0
    if len(keys) > 1:
        space.append(keys[1], list(args[5:]), max_length)
        if ttl_ms:
            space.expire(keys[1], ttl_ms)
    del group.pending[entry]
    return 1


def _hold(space: Keyspace, keys: _Keys, args: _Args) -> list[bytes]:
    stream, group = space.group(keys[0], args[0])
    lost = []
    for text in args[2:]:
        entry = entry_id(text)
        pending = group.pending.get(entry)
        if pending is None or pending.consumer != args[1]:
            lost.append(text)
        elif entry in stream.fields:
            pending.delivered_at = space.clock()
    return lost


def _leave(space: Keyspace, keys: _Keys, args: _Args) -> int:
    _, group = space.group(keys[0], args[0])
    if any(pending.consumer == args[1] for pending in group.pending.values()):
        return 0
    group.remove_consumer(args[1])
    return 1


def _stale(space: Keyspace, keys: _Keys, args: _Args) -> list[int]:
    stale = []
    for at, (key, idle_ms) in enumerate(zip(keys, args[1:], strict=True), 1):
        since = space.clock() - int(idle_ms) / 1000
        try:
            _, group = space.group(key, args[0])
        except Refused:  # asking it alone tells
            stale.append(at)
        else:
            if any(pending.delivered_at <= since for pending in group.pending.values()):
                stale.append(at)
    return stale


# ---- leases ----


def _record(space: Keyspace, key: bytes) -> tuple[int, bytes | None]:
    """Token and owner of the last holding; 0 and None when there is no record."""
    token, blank, owner = (space.text(key) or b"").partition(b" ")
    return (int(token), owner) if blank and token.isdigit() else (0, None)


def _next_token(space: Keyspace, floor: bytes, token: int) -> int:
    token = max(token + 1, space.number(floor) + 1, int(space.clock() * 1_000_000))
    space.put(floor, b"%d" % token)
    return token


def _keep_record(space: Keyspace, key: bytes, token: int, owner: bytes, times: _Args) -> None:
    """Write who holds it under which token; `times`: TTL, lock delay, whether there are tokens."""
    ttl_ms, delay_ms, fenced = times
    if fenced == b"1" or int(delay_ms):
        space.put(key, b"%d %b" % (token, owner), int(ttl_ms) + int(delay_ms))


def _lease_acquire(space: Keyspace, keys: _Keys, args: _Args) -> list[Any]:
    lease, fence, floor = keys
    owner, ttl_ms, delay_ms, fenced = args
    holder = space.text(lease)
    if holder is not None and holder != owner:
        return [0, holder, space.ttl_ms(lease)]
    token, named = _record(space, fence)
    if holder is None and named is not None and named != owner and int(delay_ms):
        return [0, named, space.ttl_ms(fence)]
    if fenced != b"1":
        token = 0
    elif holder is None or named != owner or not token:
        token = _next_token(space, floor, token)
    space.put(lease, owner, int(ttl_ms))
    _keep_record(space, fence, token, owner, args[1:4])
    return [1, owner, token]


def _lease_renew(space: Keyspace, keys: _Keys, args: _Args) -> list[int]:
    lease, fence, floor = keys
    owner, ttl_ms, _, fenced, expected = args
    if space.text(lease) != owner:
        return [0, 0]
    token, named = _record(space, fence)
    if expected:
        if named != owner or token != int(expected):
            return [0, 0]
    elif fenced != b"1":
        token = 0
    elif named != owner or not token:
        token = _next_token(space, floor, token)
    space.expire(lease, int(ttl_ms))
    _keep_record(space, fence, token, owner, args[1:4])
    return [1, token]


def _lease_release(space: Keyspace, keys: _Keys, args: _Args) -> int:
    lease, fence = keys
    owner, expected = args
    holder = space.text(lease)
    token, named = _record(space, fence)
    ours = named == owner and (not expected or token == int(expected))
    if holder == owner and (ours or not expected or named is None):
        space.delete(lease)
        space.delete(fence)
        return 1
    if holder is None and ours:
        space.delete(fence)
    return 0


def _lease_transfer(space: Keyspace, keys: _Keys, args: _Args) -> list[int]:
    lease, fence, floor = keys
    giver, taker, ttl_ms, _, fenced, expected = args
    if space.text(lease) != giver:
        return [0, 0]
    token, named = _record(space, fence)
    if expected and (named != giver or token != int(expected)):
        return [0, 0]
    if fenced != b"1":
        token = 0
    elif giver != taker or named != giver or not token:
        token = _next_token(space, floor, token)
    space.put(lease, taker, int(ttl_ms))
    _keep_record(space, fence, token, taker, args[2:5])
    return [1, token]


_STEPS: dict[str, _Step] = {
    "group_open": _group_open,
    "nack": _nack,
    "hold": _hold,
    "leave": _leave,
    "stale": _stale,
    "lease_acquire": _lease_acquire,
    "lease_renew": _lease_renew,
    "lease_release": _lease_release,
    "lease_transfer": _lease_transfer,
}
