"""The commands that an in-process server knows: those that this library sends, and a few to look at what it did.

A table from the command's name to a function of the keyspace and the arguments. Each runs to its end without waiting,
so it is atomic; what blocks, and what ends a block, is the client's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeAlias

from streamhold._backends.inprocess.keyspace import Keyspace, Refused
from streamhold._backends.inprocess.streams import NOTHING, EntryId, Group, Pending, Stream, entry_id, write_id

__all__ = ["run"]

_Args: TypeAlias = Sequence[bytes]
_Command: TypeAlias = Callable[[Keyspace, _Args], Any]

_LAST: EntryId = (2**64, 2**64)


def run(space: Keyspace, args: _Args) -> Any:
    """Run one command.

    Raises:
        Refused: what Redis would refuse, with its words.
    """
    space.drop_expired()
    name = args[0].upper()
    rest = args[1:]
    if name in _FAMILIES and rest:
        name, rest = name + b" " + rest[0].upper(), rest[1:]
    command = _COMMANDS.get(name)
    if command is None:
        raise Refused(f"ERR unknown command '{name.decode(errors='backslashreplace')}'")
    return command(space, rest)


# ---- keys and strings ----


def _get(space: Keyspace, args: _Args) -> bytes | None:
    return space.text(args[0])


def _set(space: Keyspace, args: _Args) -> bytes:
    key, value, *options = args
    space.put(key, value, int(options[1]) if options else None)
    return b"OK"


def _del(space: Keyspace, args: _Args) -> int:
    return sum(space.delete(key) for key in args)


def _exists(space: Keyspace, args: _Args) -> int:
    return sum(space.exists(key) for key in args)


def _pexpire(space: Keyspace, args: _Args) -> int:
    return int(space.expire(args[0], int(args[1])))


def _pttl(space: Keyspace, args: _Args) -> int:
    return space.ttl_ms(args[0])


# ---- streams ----


def _xadd(space: Keyspace, args: _Args) -> bytes:
    length, at = _max_length(args, 1)
    return space.append(args[0], list(args[at + 1 :]), length)  # after the `*`


def _xtrim(space: Keyspace, args: _Args) -> int:
    stream = space.stream(args[0])
    return stream.trim(int(args[-1])) if stream is not None else 0


def _max_length(args: _Args, at: int) -> tuple[int, int]:
    """MAXLEN, and where the arguments go on. `~` keeps no more than it says: there are no nodes to spare here."""
    if args[at].upper() != b"MAXLEN":
        return 0, at
    at += 1 + (args[at + 1] in (b"~", b"="))
    return int(args[at]), at + 1


def _xlen(space: Keyspace, args: _Args) -> int:
    stream = space.stream(args[0])
    return len(stream) if stream is not None else 0


def _xrange(space: Keyspace, args: _Args) -> list[Any]:
    stream = space.stream(args[0])
    if stream is None:
        return []
    count = int(args[4]) if len(args) > 4 else None
    return _entries(stream, stream.between(_from(args[1]), _to(args[2]), count))


def _xinfo_stream(space: Keyspace, args: _Args) -> list[Any]:
    stream = _there(space, args[0], "no such key")
    return [
        b"length", len(stream), b"groups", len(stream.groups), b"last-generated-id", write_id(stream.last),
    ]  # fmt: skip


def _xinfo_groups(space: Keyspace, args: _Args) -> list[Any]:
    stream = _there(space, args[0], "no such key")
    return [
        [
            b"name", name, b"consumers", len(group.consumers), b"pending", len(group.pending),
            b"last-delivered-id", write_id(group.position),
        ]
        for name, group in stream.groups.items()
    ]  # fmt: skip


# ---- groups ----


def _xgroup_create(space: Keyspace, args: _Args) -> bytes:
    key, name, start, *options = args
    if space.stream(key) is None and not options:
        raise Refused("ERR The XGROUP subcommand requires the key to exist")
    stream = space.make_stream(key)
    if name in stream.groups:
        raise Refused("BUSYGROUP Consumer Group name already exists")
    stream.groups[name] = Group(stream.last if start == b"$" else entry_id(start))
    return b"OK"


def _xgroup_destroy(space: Keyspace, args: _Args) -> int:
    stream = _there(space, args[0], "The XGROUP subcommand requires the key to exist")
    if stream.groups.pop(args[1], None) is None:
        return 0
    space.changed(args[0])
    return 1


def _xgroup_delconsumer(space: Keyspace, args: _Args) -> int:
    _, group = space.group(args[0], args[1])
    return group.remove_consumer(args[2])


def _xreadgroup(space: Keyspace, args: _Args) -> list[Any] | None:
    """GROUP group consumer [COUNT n] [BLOCK ms] STREAMS key… id…: None when there is nothing new."""
    name, consumer = args[1], args[2]
    at, count = 3, None
    while args[at].upper() != b"STREAMS":
        if args[at].upper() == b"COUNT":
            count = int(args[at + 1])
        at += 2
    named = args[at + 1 :]
    half = len(named) // 2
    groups = [space.group(key, name, " in XREADGROUP with GROUP option") for key in named[:half]]
    reply: list[Any] = []
    for key, start, (stream, group) in zip(named[:half], named[half:], groups, strict=True):
        group.consumers.add(consumer)
        if start != b">":
            reply.append([key, _history(stream, group, consumer, entry_id(start), count)])
        elif fresh := stream.after(group.position, count):
            now = space.clock()
            for entry in fresh:
                group.pending[entry] = Pending(consumer, now)
            group.position = fresh[-1]
            reply.append([key, _entries(stream, fresh)])
    return reply or None


def _history(stream: Stream, group: Group, consumer: bytes, after: EntryId, count: int | None) -> list[Any]:
    """What is pending for a consumer behind an entry; nothing for the fields of what was trimmed."""
    theirs = (entry for entry, one in group.pending.items() if entry > after and one.consumer == consumer)
    return [[write_id(entry), stream.fields.get(entry)] for entry in islice(theirs, count)]


def _xack(space: Keyspace, args: _Args) -> int:
    stream = space.stream(args[0])
    group = stream.groups.get(args[1]) if stream is not None else None
    if group is None:
        return 0
    return sum(group.pending.pop(entry_id(text), None) is not None for text in args[2:])


def _xpending(space: Keyspace, args: _Args) -> list[Any]:
    """key group: a summary. key group [IDLE ms] start end count [consumer]: what is pending, in order."""
    _, group = space.group(args[0], args[1])
    if len(args) == 2:
        return _summary(group)
    idle, at = (int(args[3]), 4) if args[2].upper() == b"IDLE" else (0, 2)
    first, last, count, *consumer = args[at:]
    now = space.clock()
    found = (
        [write_id(entry), one.consumer, round((now - one.delivered_at) * 1000), one.count]
        for entry, one in group.pending_between(_from(first), _to(last))
        if (now - one.delivered_at) * 1000 >= idle and (not consumer or one.consumer == consumer[0])
    )
    return list(islice(found, int(count)))


def _summary(group: Group) -> list[Any]:
    if not group.pending:
        return [0, None, None, None]
    consumers: dict[bytes, int] = {}
    for one in group.pending.values():
        consumers[one.consumer] = consumers.get(one.consumer, 0) + 1
    first, last = next(iter(group.pending)), next(reversed(group.pending))
    each = [[name, b"%d" % number] for name, number in consumers.items()]
    return [len(group.pending), write_id(first), write_id(last), each]


def _xclaim(space: Keyspace, args: _Args) -> list[Any]:
    """key group consumer idle id… [JUSTID]: what was trimmed is dropped from the pending, and left out."""
    key, name, consumer, idle, *ids = args
    stream, group = space.group(key, name)
    just_id = ids[-1].upper() == b"JUSTID"
    claimed: list[EntryId] = []
    for text in ids[:-1] if just_id else ids:
        entry = entry_id(text)
        one = group.pending.get(entry)
        if one is None:
            continue
        if entry not in stream.fields:
            del group.pending[entry]
        elif (space.clock() - one.delivered_at) * 1000 >= int(idle):
            one.consumer, one.delivered_at = consumer, space.clock()
            one.count += not just_id
            claimed.append(entry)
    group.consumers.add(consumer)
    return [write_id(entry) for entry in claimed] if just_id else _entries(stream, claimed)


# ---- parts ----


def _there(space: Keyspace, key: bytes, problem: str) -> Stream:
    stream = space.stream(key)
    if stream is None:
        raise Refused(f"ERR {problem}")
    return stream


def _entries(stream: Stream, ids: Sequence[EntryId]) -> list[Any]:
    return [[write_id(entry), stream.fields[entry]] for entry in ids]


def _from(text: bytes) -> EntryId:
    if text == b"-":
        return NOTHING
    if text.startswith(b"("):
        ms, number = entry_id(text[1:])
        return ms, number + 1
    return entry_id(text)


def _to(text: bytes) -> EntryId:
    return _LAST if text == b"+" else entry_id(text, _LAST[1])


_COMMANDS: dict[bytes, _Command] = {
    b"GET": _get, b"SET": _set, b"DEL": _del, b"EXISTS": _exists, b"PEXPIRE": _pexpire, b"PTTL": _pttl,
    b"XADD": _xadd, b"XTRIM": _xtrim, b"XLEN": _xlen, b"XRANGE": _xrange,
    b"XINFO STREAM": _xinfo_stream, b"XINFO GROUPS": _xinfo_groups,
    b"XGROUP CREATE": _xgroup_create, b"XGROUP DESTROY": _xgroup_destroy, b"XGROUP DELCONSUMER": _xgroup_delconsumer,
    b"XREADGROUP": _xreadgroup, b"XACK": _xack, b"XPENDING": _xpending, b"XCLAIM": _xclaim,
}  # fmt: skip
_FAMILIES = frozenset(name.partition(b" ")[0] for name in _COMMANDS if b" " in name)
