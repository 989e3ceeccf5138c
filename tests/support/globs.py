"""Glob matching as Redis does it for ACL key patterns (its `stringmatchlen`), for property tests."""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """Whether Redis says that the pattern matches the text."""
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "*":
            rest = pattern[at:].lstrip("*")
            return any(matches(rest, text[start:]) for start in range(len(text) + 1))
        if not text:
            return False
        if character == "[":
            end, inside = _class(pattern, at)
            if not inside(text[0]):
                return False
            at = end
        elif character != "?":
            if character == "\\" and at + 1 < len(pattern):
                at += 1
            if pattern[at] != text[0]:
                return False
        at, text = at + 1, text[1:]
    return not text


def _class(pattern: str, at: int):  # type: ignore[no-untyped-def]
    end = pattern.index("]", at)
    body = pattern[at + 1 : end]
    if len(body) == 3 and body[1] == "-":
        return end, lambda character: body[0] <= character <= body[2]
    return end, lambda character: character in body
