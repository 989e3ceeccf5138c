"""Replies of Redis as values of the domain, for every product and version that answers differently."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from streamhold_operator.adapters.redis_wire import Reply
from streamhold_operator.domain.acl import Rights, UserRule, without_covered

__all__ = ["categories_in", "info", "pairs", "user_rule"]

_NO_CATEGORIES: Mapping[str, Collection[str]] = MappingProxyType({})
_OUR_FLAGS = frozenset({"on", "off", "sanitize-payload"})
"""Flags that say nothing beyond what a rule of ours says."""


def info(reply: Reply) -> dict[str, str]:
    """Return the fields of an INFO section."""
    fields: dict[str, str] = {}
    for line in str(reply).splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            fields[name] = value
    return fields


def pairs(reply: Reply) -> dict[str, Reply]:
    """Return a map that RESP2 sends as a flat list."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def categories_in(reply: Reply) -> set[str]:
    """Return the command categories that a reply of ACL GETUSER speaks of, without their sign and `@`."""
    if reply is None:
        return set()
    fields = pairs(reply)
    texts = [fields["commands"], *(pairs(selector)["commands"] for selector in fields.get("selectors", ()))]
    return {word[2:] for text in texts for word in text.split() if word[1:2] == "@"} - {"all"}


def user_rule(reply: Reply, categories: Mapping[str, Collection[str]] = _NO_CATEGORIES) -> UserRule | None:
    """Return the rule in a reply of ACL GETUSER, in canonical form; None when there is no such user.

    Redis 6.2 sends key and channel patterns as lists without their sign, and commands summed up in categories, whatever
    they were granted as; Redis 7 and Valkey send patterns as one text with it, and selectors. Valkey 9.1 adds
    databases.

    Args:
        reply: of ACL GETUSER.
        categories: the commands of each category in `categories_in`, from ACL CAT.
    """
    if reply is None:
        return None
    fields = pairs(reply)
    flags = set(fields["flags"])
    strange = flags - _OUR_FLAGS
    if fields.get("databases", "alldbs") != "alldbs":
        strange.add(f"databases {fields['databases']}")
    return UserRule(
        enabled="on" in flags,
        passwords=frozenset(fields["passwords"]),
        root=_rights(fields, categories),
        selectors=frozenset(_rights(pairs(selector), categories) for selector in fields.get("selectors", ())),
        flags=frozenset(strange),
    )


def _rights(fields: Mapping[str, Reply], categories: Mapping[str, Collection[str]]) -> Rights:
    return Rights(
        commands=_commands(fields["commands"].split(), categories),
        keys=frozenset(_patterns(fields["keys"], "~")),
        channels=frozenset(pattern.removeprefix("&") for pattern in _patterns(fields["channels"], "&")),
    )


def _patterns(reply: Reply, sign: str) -> Iterable[str]:
    return reply.split() if isinstance(reply, str) else (f"{sign}{pattern}" for pattern in reply)


def _commands(words: list[str], categories: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return the commands that the words allow, read one after the other; a word of doubtful meaning stays as it is."""
    if words[:1] != ["-@all"]:
        return frozenset(words)
    if all(word[0] == "+" and word[1] != "@" for word in words[1:]):
        return without_covered(word[1:] for word in words[1:])
    allowed: set[str] = set()
    for word in words[1:]:
        sign, name = word[0], word[1:]
        if name.startswith("@") and name[1:] not in categories:
            allowed.add(word)
            continue
        meant = categories[name[1:]] if name.startswith("@") else (name,)
        for command in meant:
            allowed = {one for one in allowed if one != command and not one.startswith(f"{command}|")}
            if sign == "+":
                allowed.add(command)
    return frozenset(allowed)
