"""`python -m streamhold_dev`: what the Makefile calls."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from streamhold_dev import binaries, gobuild


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m streamhold_dev", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("binaries", help="find or build etcd, kube-apiserver, kube-controller-manager, helm, kubectl")
    options = parser.parse_args(arguments)
    try:
        return _COMMANDS[options.command](options)
    except (gobuild.BuildFailed, binaries.BinaryMissing) as failure:
        print(f"streamhold: {failure}", file=sys.stderr)
        return 1


def _binaries(_: argparse.Namespace) -> int:
    for name, path in binaries.ensure().items():
        print(f"{name:24} {path}")
    return 0


_COMMANDS = {"binaries": _binaries}

if __name__ == "__main__":
    sys.exit(main())
