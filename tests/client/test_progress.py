"""Progress of maps and futures: what is counted and told, and what terminal, log and notebook show of it."""

import asyncio
import concurrent.futures
import gc
import io
import re
import sys
import types
from collections.abc import Callable

import pytest

from taskmesh import Progress, as_completed, gather, task
from taskmesh.client import progress as progress_module
from taskmesh.client import progress_display
from taskmesh.client.progress import ProgressCounter
from taskmesh.client.progress_display import Lines
from taskmesh.errors import ConfigError

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SHOWN, HIDDEN = "\x1b[?25h", "\x1b[?25l"


def odd(number: int) -> int:
    if number % 5 == 3:
        raise ValueError(number)
    return number


@task
def half(number: int) -> float:
    return number / 2


class Screen(io.StringIO):
    """A terminal, as far as programs can tell."""

    def isatty(self) -> bool:
        return True

    @property
    def frames(self) -> list[str]:
        """The lines that were drawn, one after the other, without colours."""
        return [
            line.rstrip() for line in ESCAPES.sub("", self.getvalue()).replace("\r", "\n").split("\n") if line
        ]


@pytest.fixture
def look(monkeypatch) -> Callable[[], Screen]:
    """Makes stderr a terminal: in the test itself, as pytest sets it anew after all fixtures."""

    def look() -> Screen:
        monkeypatch.setattr(sys, "stderr", Screen())
        return sys.stderr

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return look


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "monotonic", clock)
    monkeypatch.setattr(progress_display, "monotonic", clock)
    return clock


# --- what is told -----------------------------------------------------------------------------------------


def test_a_function_is_told_ten_times_a_second_and_at_the_end(clock):
    told = []
    counter = ProgressCounter(40, lambda *call: told.append(call))
    for _ in range(40):
        counter.add()
        clock.now += 0.0625
    counter.end()
    counter.end()
    counter.add()

    assert [progress.done for progress, _ in told] == [*range(1, 41, 2), 40]
    assert [last for _, last in told] == [False] * 20 + [True]


def test_the_rate_is_that_of_the_last_while_and_the_rest_takes_as_long_at_it(clock):
    told: list[Progress] = []
    counter = ProgressCounter(1000, lambda progress, _: told.append(progress))
    for _ in range(100):
        clock.now += 1.0
        counter.add()
    for _ in range(300):
        clock.now += 0.5
        counter.add()

    assert told[0] == Progress(1, 0, 1000, rate=1.0, eta=999.0)
    assert told[-1].rate == pytest.approx(2.0, rel=0.01)
    assert told[-1].eta == pytest.approx(300, rel=0.01)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("buffersize", [None, 6])
def test_a_map_is_told_whole_with_its_errors(mesh, ordered, buffersize):
    told: list[Progress] = []
    how = {"ordered": ordered, "buffersize": buffersize, "return_exceptions": True}
    results = list(mesh.map(odd, iter(range(20)), progress=told.append, **how))

    assert len(results) == 20
    assert (told[-1].done, told[-1].failed, told[-1].total) == (20, 4, 20)
    assert all(each.total == (20 if buffersize is None else None) for each in told[:-1])
    assert [each.done for each in told] == sorted(each.done for each in told)


def test_starmap_and_amap_are_told_too(mesh):
    told: list[Progress] = []
    list(mesh.starmap(odd, [(1,), (2,)], progress=told.append))

    async def amapped() -> None:
        assert [each async for each in mesh.amap(odd, [1, 2], progress=told.append)] == [1, 2]

    assert told[-1].done == 2
    told.clear()
    asyncio.run(amapped())
    assert told[-1].done == 2


def test_items_that_run_again_alone_count_once(mesh):
    told: list[Progress] = []
    again = task(odd).with_options(retries=1)
    list(mesh.map(again, range(20), progress=told.append, return_exceptions=True))

    assert (told[-1].done, told[-1].failed, told[-1].total) == (20, 4, 20)


@pytest.mark.parametrize("foreign", [False, True])
def test_futures_are_told_by_whoever_waits_for_them(mesh, foreign):
    def futures() -> list[concurrent.futures.Future]:
        found = [mesh.submit(odd, number) for number in range(10)]
        if foreign:
            found.append(concurrent.futures.Future())
            found[-1].set_result(10)
        return found

    told: list[Progress] = []
    count = 11 if foreign else 10
    assert len(list(as_completed(futures(), 10, progress=told.append))) == count
    assert (told[-1].done, told[-1].failed, told[-1].total) == (count, 2, count)
    assert len(gather(futures(), progress=told.append, return_exceptions=True)) == count
    assert (told[-1].done, told[-1].failed, told[-1].total) == (count, 2, count)
    with pytest.raises(ValueError, match="3"):
        gather(futures(), progress=told.append)
    assert told[-1].failed == 1
    with pytest.raises(TimeoutError, match=r"1 of 1 tasks were not done within 0\.01 s"):
        gather([concurrent.futures.Future()], timeout=0.01, progress=told.append)
    assert (told[-1].done, told[-1].total) == (0, 1)


def test_a_function_that_fails_is_logged_and_the_map_goes_on(mesh, caplog):
    def fails(_: Progress) -> None:
        raise OSError("no more")

    assert list(mesh.map(odd, [1, 2], progress=fails)) == [1, 2]
    assert [record.message for record in caplog.records] == ["progress cannot be shown, and is not any more"]


@pytest.mark.parametrize("wrong", [1, 0.5, [], object()])
def test_what_is_no_progress_is_refused(mesh, wrong):
    with pytest.raises(ConfigError, match="progress has to be True, a label, or a function of one argument"):
        mesh.map(odd, [1], progress=wrong or [0])


# --- a terminal -------------------------------------------------------------------------------------------


def test_a_bar_reaches_its_total_with_errors_in_red_and_leaves_stdout_alone(mesh, look, capsys):
    screen = look()
    before = sys.stdout
    list(mesh.map(odd, range(20), progress="numbers", return_exceptions=True))

    assert re.fullmatch(r"numbers ━+ 20 of 20  4 failed( .*)?", screen.frames[-1])
    assert "\x1b[31m4 failed" in screen.getvalue()
    assert screen.getvalue().rfind(SHOWN) > screen.getvalue().rfind(HIDDEN)
    assert (sys.stdout, capsys.readouterr().out) == (before, "")


def test_bars_within_a_loop_over_a_bar(mesh, look):
    screen = look()
    for number in mesh.map(half.__wrapped__, range(3), progress="outer"):
        list(mesh.map(half.__wrapped__, range(5), progress=f"inner {number}"))

    assert [line.partition("━")[0].split() for line in screen.frames[-4:]] == [
        ["outer"],
        ["inner", "0.0"],
        ["inner", "0.5"],
        ["inner", "1.0"],
    ]
    assert "3 of 3" in screen.frames[-4]
    assert all("5 of 5" in line for line in screen.frames[-3:])


def test_a_block_has_a_bar_for_each_function_and_map(mesh, look):
    screen = look()
    with mesh.progress() as bars:
        halves = [half.submit(number) for number in range(7)]
        list(bars.map(odd, range(20), return_exceptions=True))
        bars.submit(odd, 3).exception()
        gather(halves)

    last = {line.split()[0]: line for line in screen.frames if "━" in line}
    assert "7 of 7" in last["half"]
    assert any("20 of 20  4 failed" in line for line in screen.frames)
    assert any("1 of 1  1 failed" in line for line in screen.frames)


@pytest.mark.parametrize("way", ["close", "drop", "error"])
def test_a_map_that_is_left_shows_its_bar_no_more(mesh, look, way):
    screen = look()
    results = mesh.map(odd, range(20), progress=True)
    next(results)
    if way == "close":
        results.close()
    elif way == "error":
        with pytest.raises(ValueError, match="3"):
            list(results)
    del results
    gc.collect()

    assert screen.getvalue().rfind(SHOWN) > screen.getvalue().rfind(HIDDEN)


# --- no terminal ------------------------------------------------------------------------------------------


def test_without_a_terminal_there_are_lines_and_no_colours(mesh, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    list(mesh.map(odd, range(20), progress="numbers", return_exceptions=True))

    told = capsys.readouterr()
    assert told.err.splitlines()[-1].startswith("numbers: 20 of 20 (100%), 4 failed")
    assert "\x1b" not in told.err
    assert told.out == ""


def test_lines_come_after_a_second_then_each_ten_and_at_quarters(clock, capsys):
    shown = Lines("f")

    def told(done: int, *, last: bool = False) -> str:
        shown(Progress(done, 0, 100, 0.0, None), last)
        return capsys.readouterr().err

    assert told(1) == ""
    clock.now += 1.0
    assert told(2) == "f: 2 of 100 (2%)\n"
    clock.now += 9.9
    assert told(3) == ""
    clock.now += 0.1
    assert told(24) == "f: 24 of 100 (24%)\n"
    assert [bool(told(done)) for done in (25, 26, 49, 50, 74, 80, 99)] == [
        True,
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert told(100) == "f: 100 of 100 (100%)\n"
    assert told(100, last=True) == ""


def test_a_program_without_stderr_prints_nothing(mesh, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)

    assert list(mesh.map(odd, [1, 2], progress=True)) == [1, 2]
    assert capsys.readouterr().out == ""


# --- a notebook -------------------------------------------------------------------------------------------


def test_a_notebook_has_one_display_that_is_updated(mesh, monkeypatch, capsys):
    """Modules that stand for IPython: it is not installed here."""
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(data["text/html"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert (raw, display_id, shown) == (True, True, [])
        shown.append(data["text/html"])
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    list(mesh.map(odd, iter(range(20)), buffersize=5, progress="a < b", return_exceptions=True))

    assert shown[0].startswith("a &lt; b <progress></progress> ")
    assert shown[-1].startswith('a &lt; b <progress value="20" max="20"></progress> 20 of 20 ')
    assert "4 failed" in shown[-1]
    assert capsys.readouterr() == ("", "")
