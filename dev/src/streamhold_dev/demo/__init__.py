"""The main job end to end, shown step by step: what `make demo` runs.

`story` tells it, `console` prints it, `programs` runs the example programs against a binding folder.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from streamhold_dev import folders, kept, processes
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.demo.console import Console, DemoFailed
from streamhold_dev.demo.story import Story

__all__ = ["run"]


def run(*, keep: bool = False) -> int:
    """Run the demo and return the exit code: 0 only if every check held.

    Args:
        keep: leave the servers and the operator running; `streamhold_dev.kept.down` ends them.

    Raises:
        AlreadyUp: a kept demo is running.
    """
    folder = folders.RUN / "demo" if keep else Path(tempfile.mkdtemp(prefix="streamhold-demo-"))
    if keep:
        if ControlPlane.is_in(folder / "controlplane"):
            raise kept.AlreadyUp("the demo is running already: `make down` ends it")
        shutil.rmtree(folder, ignore_errors=True)
    console = Console()
    story = Story(folder, console)
    try:
        story.tell(keep=keep)
        if not keep:
            story.console.step("End everything")
            story.end()
            shutil.rmtree(folder)
    except (DemoFailed, processes.StartError, processes.CommandFailed) as failure:
        story.abandon()
        print(f"\nThe demo failed: {failure}\nThe logs are in {folder}", flush=True)
        return 1
    except BaseException:  # Ctrl-C above all: nothing may stay behind
        story.abandon()
        raise
    console.summary()
    if keep:
        story.leave_running()
    return 0
