"""The main job end to end, shown step by step: what `make demo` runs.

`story` tells it, `console` prints it, `programs` runs the example programs against a binding folder.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from streamhold_dev import binaries, folders, kept, processes
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.demo import programs
from streamhold_dev.demo.console import Console, DemoFailed
from streamhold_dev.demo.story import CLIENT, NAMESPACE, Story

__all__ = ["mount", "run"]


def run(*, keep: bool = False) -> int:
    """Run the demo and return the exit code: 0 only if every check held.

    Args:
        keep: leave the servers and the operator running; `streamhold_dev.kept.down` ends them.

    Raises:
        AlreadyUp: a kept demo is running.
        BuildFailed: the API server could not be built.
    """
    binaries.ensure()
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
    except KeyboardInterrupt:
        story.abandon()
        shutil.rmtree(folder, ignore_errors=True)
        print("\nInterrupted: everything was ended", flush=True)
        return 130
    except BaseException:  # a fault of the demo itself: nothing may stay behind
        story.abandon()
        raise
    console.summary()
    if keep:
        story.leave_running()
    return 0


def mount(client: str, *, namespace: str) -> Path:
    """Mount the binding Secret of a client of the kept demo, or mount it anew; return the folder.

    Raises:
        StartError: no kept demo is running.
        CommandFailed: there is no such client, or it has no Secret yet.
    """
    folder = folders.RUN / "demo"
    plane = ControlPlane.attach(folder / "controlplane")
    here = "binding" if (namespace, client) == (NAMESPACE, CLIENT) else f"binding-{namespace}-{client}"
    return programs.mount(programs.secret_of_client(plane, namespace, client), folder / here)
