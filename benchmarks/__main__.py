"""`python -m benchmarks`: our public API beside raw redis-py on a Valkey of its own, as ratios of one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.cases import Bench
from benchmarks.rounds import Case, measure
from streamhold_dev.redisserver import RedisServer


def main() -> None:
    """Read the command line, measure, print."""
    options = _options()
    server = RedisServer(config={"maxclients": "200"})
    with server:
        if options.pin:
            _pin(server)
        with asyncio.Runner(loop_factory=_loop_factory(options.uvloop)) as runner:
            cases = runner.run(_measure(server, options))
    if options.json:
        options.json.write_text(json.dumps(_report(cases, options), indent=2, sort_keys=True) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three short rounds: whether it runs, not how fast")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per case (default 7)")
    parser.add_argument("--only", default="", help="only cases with this text in their name")
    parser.add_argument("--uvloop", action="store_true", help="run our side and redis-py on uvloop")
    parser.add_argument("--pin", action="store_true", help="this process on the first core, the server on the last")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write rates and ratios there")
    return parser.parse_args()


def _loop_factory(uvloop: bool) -> object:
    if not uvloop:
        return None
    try:
        from uvloop import new_event_loop
    except ImportError:
        raise SystemExit("--uvloop needs the extra streamhold[uvloop]") from None
    return new_event_loop


def _pin(server: RedisServer) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(server.server.pid, {cores[-1]})
    os.sched_setaffinity(0, {cores[0]})


async def _measure(server: RedisServer, options: argparse.Namespace) -> list[Case]:
    bench = Bench(server)
    await bench.open()
    done = []
    try:
        print(f"{'':58}{'per second':>12}{'ratio':>8}{'target':>8}")
        for case in bench.cases():
            if options.only in case.name:
                shrink, rounds = (10, 3) if options.quick else (1, options.rounds)
                await measure(case, rounds, case.operations // shrink)
                print("\n".join(_lines(case)), flush=True)
                done.append(case)
    finally:
        await bench.close()
    return done


def _lines(case: Case) -> Sequence[str]:
    lines = []
    for side in case.sides:
        ours = side is case.sides[0]
        label = f"{case.name}: {side.name}" if ours else f"    {side.name}"
        ratio = "" if ours else f"{case.ratio(side.name):.2f}"
        target = f"≥ {case.targets[side.name]:g}" if side.name in case.targets else ""
        lines.append(f"{label:58}{case.rates[side.name]:>12,.0f}{ratio:>8}{target:>8}")
    return lines


def _report(cases: Sequence[Case], options: argparse.Namespace) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "streamhold": version("streamhold"),
        "redis-py": version("redis"),
        "loop": "uvloop" if options.uvloop else "asyncio",
        "pinned": options.pin,
        "cases": {
            case.name: {
                "rates": case.rates,
                "ratios": {side.name: case.ratio(side.name) for side in case.sides[1:]},
                "targets": case.targets,
            }
            for case in cases
        },
    }


main()
