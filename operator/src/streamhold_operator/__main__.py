"""`python -m streamhold_operator`: read the settings, run until told to stop, end within seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Sequence

from kubernetes.aio.config import ConfigException

from streamhold_operator import logs
from streamhold_operator.app import Operator
from streamhold_operator.settings import SettingsError, parse_settings

logger = logging.getLogger("streamhold_operator")

LONGEST_END = 4.5
"""Seconds after which the process ends whatever still hangs: a thread in a name look-up cannot be cancelled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator; return the exit code."""
    try:
        settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
    except SettingsError as exc:
        sys.stderr.write(f"streamhold-operator: {exc}\n")
        return 2
    logs.configure(settings.log_format, settings.log_level)
    try:
        asyncio.run(_run(Operator(settings, on_stop=_end_in_any_case)))
    except ConfigException as exc:
        logger.error("No way to the API server: %s; give --kubeconfig, or run in a pod with a service account", exc)
        return 1
    except OSError as exc:
        logger.error("Cannot start: %s", exc)
        return 1
    except Exception:
        logger.exception("Ended by a fault; start it again")
        return 1
    logger.info("Ended")
    return 0


async def _run(operator: Operator) -> None:
    operator.handle_signals()
    await operator.run()


def _end_in_any_case() -> None:
    last_resort = threading.Timer(LONGEST_END, os._exit, [0])
    last_resort.daemon = True
    last_resort.start()


if __name__ == "__main__":
    sys.exit(main())
