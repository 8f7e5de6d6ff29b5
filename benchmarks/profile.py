"""The processor time of a no-op task: microseconds a task, by process and thread.

`python -m benchmarks.profile [CONTENDER] [--tasks N] [--sample]`. The kernel's own accounting (schedstat)
counts every thread of every process that the contender started, and costs the measured run nothing.
--sample runs once more and looks at the Python stacks of this process. That shows which lines the hub
thread is in, but it needs the GIL to look, so lines that give the GIL away are seen too often: a hint,
where the first table is a measurement.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine
from benchmarks.contender import CONTENDERS, Contender, load
from benchmarks.rows import Scale, check, warm_up
from benchmarks.workloads import noop

SAMPLE_EVERY_S = 0.0005
SWITCH_S = 0.0001


class Thread(NamedTuple):
    """One thread of one process."""

    process: int
    thread: int


class Share(NamedTuple):
    """The processor time of one thread during the run."""

    owner: Thread
    label: str
    nanoseconds: int


def used() -> dict[Thread, int]:
    """Return the nanoseconds that each thread of this process and its descendants has had a processor for."""
    found = {}
    for process in (os.getpid(), *machine.descendants()):
        tasks = machine.PROC / str(process) / "task"
        for thread in tasks.iterdir():
            try:
                found[Thread(process, int(thread.name))] = int((thread / "schedstat").read_text().split()[0])
            except OSError:
                continue  # it ended while the folder was read
    return found


def label(owner: Thread) -> str:
    """Name a thread: by Python where it is one of this process, else as the kernel does."""
    if owner.process == os.getpid():
        for thread in threading.enumerate():
            if thread.native_id == owner.thread:
                return f"this process: {thread.name}"
    folder = machine.PROC / str(owner.process)
    name = (folder / "task" / str(owner.thread) / "comm").read_text().strip()
    if owner.process == os.getpid():
        return f"this process: {name} (no Python thread)"
    arguments = (folder / "cmdline").read_bytes().split(b"\0")
    program = " ".join(Path(word.decode(errors="replace")).name for word in arguments if word)[:40]
    return f"process {owner.process} ({program}): {'main' if owner.process == owner.thread else name}"


def shares(before: dict[Thread, int], after: dict[Thread, int]) -> list[Share]:
    """Return what was used between two looks, most first; threads that ended in between are not in it."""
    found = [Share(owner, label(owner), spent - before.get(owner, 0)) for owner, spent in after.items()]
    return sorted(found, key=lambda share: share.nanoseconds, reverse=True)


def run(contender: Contender, tasks: int) -> float:
    """Run the no-ops, check them, give the seconds it took."""
    arguments = range(tasks)
    start = time.perf_counter()
    results = contender.run_each(noop, arguments)
    seconds = time.perf_counter() - start
    check(results, arguments)
    return seconds


def account(contender: Contender, tasks: int) -> None:
    """Print the processor time a task, by thread."""
    run(contender, tasks)  # what is paid once (imports, learning how long the function takes) is paid here
    before = used()
    seconds = run(contender, tasks)
    found = shares(before, used())
    whole = sum(share.nanoseconds for share in found)
    print(f"{tasks:,} no-ops, {tasks / seconds:,.0f}/s, {seconds / tasks * 1e6:.2f} us of time a task")
    print(f"{'us a task':>10}  {'of a CPU':>8}  thread")
    for share in found:
        if share.nanoseconds > whole * 0.002:
            busy = share.nanoseconds / 1e9 / seconds
            print(f"{share.nanoseconds / tasks / 1000:10.3f}  {busy:8.0%}  {share.label}")
    print(f"{whole / tasks / 1000:10.3f}  {whole / 1e9 / seconds:8.0%}  all")


@contextmanager
def sampling(stacks: dict[str, Counter[str]]) -> Iterator[None]:
    """Look at the stacks of all other threads of this process until the block ends."""
    stopped = threading.Event()

    def look() -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = threading.get_ident()
        while not stopped.wait(SAMPLE_EVERY_S):
            for ident, frame in sys._current_frames().items():
                if ident != own:
                    code = frame.f_code
                    place = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}"
                    stacks.setdefault(names.get(ident, str(ident)), Counter())[place] += 1

    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    looker = threading.Thread(target=look, name="sampler")
    looker.start()
    try:
        yield
    finally:
        stopped.set()
        looker.join()
        sys.setswitchinterval(usual)


def sample(contender: Contender, tasks: int, lines: int) -> None:
    """Print the lines that each thread of this process was most often seen in."""
    stacks: dict[str, Counter[str]] = {}
    with sampling(stacks):
        run(contender, tasks)
    for name, places in stacks.items():
        total = sum(places.values())
        print(f"\n{name}: seen {total} times")
        for place, count in places.most_common(lines):
            print(f"{count / total:8.1%}  {place}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("contender", nargs="?", default="taskmesh", choices=CONTENDERS)
    parser.add_argument("--tasks", type=int, help="default: what the benchmark runs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", action="store_true", help="also sample the Python stacks of this process")
    parser.add_argument("--lines", type=int, default=15, help="lines a thread with --sample")
    options = parser.parse_args()
    if not machine.LINUX:
        sys.exit("this reads /proc, which only Linux has")
    machine.adopt_orphans()
    contender = load(options.contender)()
    tasks = options.tasks or contender.sizes.noops
    contender.open(options.workers)
    try:
        warm_up(contender, Scale(options.workers))
        account(contender, tasks)
        if options.sample:
            sample(contender, tasks, options.lines)
    finally:
        contender.close()
        machine.end_descendants()


if __name__ == "__main__":
    main()
