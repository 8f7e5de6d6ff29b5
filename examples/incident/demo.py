"""Break a mesh in six ways: `status`, `top` and the dashboard say each in the same sentence.

    python examples/incident/demo.py [--keep] [--pictures FOLDER]

Then all is mended, and nothing is said any more. It takes a minute or two, for failures are told for a
minute. --keep leaves the mesh broken until Ctrl-C, for a look at the page.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import functions
from programs import Programs

from taskmesh import Mesh

PATIENCE_S = 150.0


def said(mesh: Mesh, wanted: Callable[[list[str]], object], otherwise: str) -> list[str]:
    """Return what `status` says is wrong, once it is as wanted."""
    end = time.monotonic() + PATIENCE_S
    while not wanted(found := mesh.status()["verdicts"]):
        if time.monotonic() > end:
            sys.exit(f"{otherwise}: {found}")
        time.sleep(0.2)
    return list(found)


def shown(programs: Programs, mesh: Mesh, what: str, start: str) -> None:
    """Wait for a sentence that begins so, and look for it in `top` and on the page."""
    began = time.monotonic()
    found = said(mesh, lambda told: any(each.startswith(start) for each in told), f"{start!r} is not said")
    sentence = next(each for each in found if each.startswith(start))
    for who, text in (
        ("top", programs.top()),
        ("dashboard", programs.page(start) if programs.url else start),
    ):
        if start not in text:
            sys.exit(f"{who} does not say {sentence!r}, but {text}")
    print(f"{what}\n    after {time.monotonic() - began:.1f} s: {sentence}", flush=True)


def incident(programs: Programs, mesh: Mesh) -> list[Callable[[], object]]:
    """Break the mesh in six ways; return what mends it."""
    nap = functions.nap
    lost = mesh.with_options(queue="gpu", tags=["a100"]).submit(nap, 0)
    shown(
        programs, mesh, "1. A task for a pool that there is not", "queue 'gpu' with tags a100: 1 task waits"
    )
    programs.run("pool", "pause", "paused")
    slow = mesh.with_options(queue="slow").submit(nap, 0)
    shown(programs, mesh, "2. A pool that somebody has paused", "queue 'slow': 1 task waits")
    programs.signal("frozen", signal.SIGSTOP)
    shown(programs, mesh, "3. A pool whose host stands still", "pool frozen has not been heard of")
    mesh.submit(functions.poison).exception()
    shown(programs, mesh, "4. A function that kills its process", "functions.poison: crash")
    for number in range(20):
        mesh.submit(functions.flaky, number).exception()
    shown(programs, mesh, "5. A service that does not answer", "functions.flaky: ConnectionError")
    mesh.map(nap, [0.01] * 30)
    hung = mesh.submit(nap, 600)
    shown(programs, mesh, "6. A task that hangs", "functions.nap runs on works/")
    return [
        lost.cancel,
        lambda: programs.run("pool", "resume", "paused"),
        slow.result,
        lambda: programs.signal("frozen", signal.SIGCONT),
        hung.cancel,
    ]


def main() -> None:
    """Run the incident."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="of the broken mesh's dashboard")
    parser.add_argument("--keep", action="store_true", help="leave the mesh broken until Ctrl-C")
    options = parser.parse_args()
    programs = Programs()
    try:
        print(
            f"hub at {programs.address}; dashboard: {programs.url or 'needs starlette and uvicorn'}",
            flush=True,
        )
        with Mesh(programs.address) as mesh:
            mends = incident(programs, mesh)
            if options.pictures:
                import screenshots

                screenshots.take(programs.url, options.pictures, "functions.nap runs on works/")
            if options.keep:
                print("the mesh stays as it is: Ctrl-C ends it", flush=True)
                signal.sigwait({signal.SIGINT})
            for mend in mends:
                mend()
            said(mesh, lambda told: not told, "it is mended, and still said")
            print("All is mended, and nothing is said any more.")
    finally:
        programs.close()


if __name__ == "__main__":
    main()
