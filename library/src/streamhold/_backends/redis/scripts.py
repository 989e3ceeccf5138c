"""Lua scripts: one file, one atomic step, run by its digest."""

from __future__ import annotations

import hashlib
from importlib import resources

__all__ = ["Script"]


class Script:
    """A Lua script of this package; `RedisClient.run_script` runs it.

    Sent by digest (EVALSHA) and, to a server that does not know it, as text (EVAL), which also teaches it. Nothing is
    loaded ahead: a server forgets scripts on a restart, a failover and SCRIPT FLUSH.
    """

    __slots__ = ("name", "sha", "source")

    name: str
    source: str
    sha: str
    """Hexadecimal SHA-1 of the text, as the server computes it."""

    def __init__(self, name: str, source: str | None = None) -> None:
        """Load `lua/<name>.lua`, or take the text given.

        Raises:
            FileNotFoundError: this package has no such script.
        """
        if source is None:
            source = resources.files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
        self.name = name
        self.source = source
        # The server's own name for it, not a matter of security.
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"
