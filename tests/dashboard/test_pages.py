"""The dashboard's pages in a real browser."""

from __future__ import annotations

import pytest

from taskmesh import Mesh, task
from tests.dashboard.chromium import Opened
from tests.harness.gate import wait_at
from tests.harness.ports import lasting_address
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

SCREENS = ("", "tasks", "tasks?state=failed", "functions", "errors", "pools", "events", "mesh")
HIT = "window.hit=1"
HOSTILE = (
    f"<img src=x onerror={HIT}>",
    f"<script>{HIT}</script>",
    f"</script><script>{HIT}</script>",
    f"<svg onload={HIT}>",
    "<iframe srcdoc='<script>parent.hit=1</script>'>",
    f'"><body onload={HIT}>',
    f"' onmouseover='{HIT}' x='",
    f"javascript:{HIT}",
    f"<a href=javascript:{HIT}>x</a>",
    f"{{{{constructor.constructor('{HIT}')()}}}}",
    f"${{{HIT}}}",
    f"<details open ontoggle={HIT}>",
    f"<style>*{{animation:x}}</style><b onanimationstart={HIT}>",
    "<meta http-equiv=refresh content=0;url=/x>",
    "<base href=//elsewhere.example/>",
    "<form action=//elsewhere.example><button>Enter</button></form>",
    "</th></tr></table><h1>owned</h1>",
    "\u202etxt.exe",
    "\u2066\u2069\u200b\ufeff",
    "\x1b[2J\x1b]0;owned\x07",
    "\r\n\r\nHTTP/1.1 200 OK",
    "data: {}\n\nevent: start\ndata: {}",
    "%3Cscript%3E#/tasks?state=failed&x=",
    "x" * 200,
)
"""Texts that would run, or be taken for markup, directions or headers, if they were not data."""

HOVER = "for (const each of document.querySelectorAll('main *')) each.dispatchEvent(new Event('mouseover'))"
OPEN = "for (const each of document.querySelectorAll('details')) each.open = true"
AWAY = "did not answer within"
NAVIGATION = {"Overview", "Tasks", "Functions", "Errors", "Pools", "Events", "Mesh"}


def start(programs: Programs, address: str, *options: str) -> str:
    """Start a dashboard; return its address with the token."""
    line = ("dashboard", "--address", address, "--http", "127.0.0.1:0", "--json", *options)
    return str(programs.start(*line).ready()["url"])


def test_a_page_shows_what_runs_and_loads_nothing_from_elsewhere(programs: Programs, gates, opened: Opened):
    _, address = programs.hub()
    programs.worker(address, "--name", "steady", slots=2)
    page = opened(start(programs, address))
    page.sees("Overview", "steady", "0 / 2")
    assert page.driver.current_url == f"{page.base}#/"
    with Mesh(address) as mesh:
        gate = gates()
        held = mesh.submit(wait_at, gate.path)
        page.sees("1 / 2")
        for screen in SCREENS:
            page.go(screen)
            page.sees("Data of")
        page.go("tasks?state=running")
        page.sees("1 of 1 tasks, running", held.task_id[:6])
        page.go(f"task?id={held.task_id}")
        page.sees("runs it for", f"taskmesh explain {held.task_id}")
        gate.open()
        held.result(20)
        page.sees("succeeded", "attempt 1 on steady/")
    assert page.run("return document.querySelectorAll('th:not([scope])').length") == 0
    assert page.run("return document.cookie") == ""
    assert page.complaints() == []
    assert page.asked_elsewhere() == []


def test_texts_of_others_are_inert(programs: Programs, opened: Opened):
    _, address = programs.hub()
    programs.worker(address, "--name", "<b/id=pool>bold</b>")
    page = opened(start(programs, address))
    with Mesh(address) as mesh:
        for text in HOSTILE:
            assert task(workload.refuse).with_options(name=text).submit(text).exception(20) is not None
        waits = task(workload.add).with_options(tags=[HOSTILE[0]], name=HOSTILE[1]).submit(1, 2)
        (failed,) = [each for each in _failed(mesh) if each["name"] == HOSTILE[0]]
        for screen in (*SCREENS, f"task?id={waits.task_id}", f"task?id={failed['task_id']}"):
            page.go(screen)
            page.sees("Data of")
            page.run(OPEN)
            page.run(HOVER)
        page.go("errors")
        seen = page.sees(*HOSTILE[:5])
        assert "\u202e" not in seen
        assert "\x1b" not in seen
        assert page.run("return window.hit") is None
        made = "img, iframe, svg, style, base, meta[http-equiv], #pool, script:not([src]), b b, h1 + h1"
        assert page.run("return document.querySelectorAll(arguments[0]).length", made) == 0
        assert page.complaints() == []
        assert page.asked_elsewhere() == []
        waits.cancel()


def _failed(mesh: Mesh):
    return mesh._client.open().query("tasks", "failed", 1000)


def test_everything_is_reached_by_keys(programs: Programs, opened: Opened):
    _, address = programs.hub()
    programs.worker(address, "--name", "steady")
    page = opened(start(programs, address, "--allow", "pause"))
    page.sees("steady")
    wanted = {
        *NAVIGATION,
        "Skip to the content",
        "Pause",
        "Theme",
        "?",
        "Log out",
        "5 min",
        "1 h",
        "As a table",
    }
    reached = set()
    for _ in range(40):
        page.press("\ue004")
        reached.add(page.run("return document.activeElement.textContent.trim()"))
    assert wanted <= reached
    page.run("document.activeElement.blur()")
    page.press("p")
    page.sees("Python", "steady")
    page.click("pause steady")
    page.sees("Pause pool steady?")
    page.press("\ue00c")
    page.press("t")
    page.sees("Search")
    page.press("/")
    wait_until(lambda: page.run("return document.activeElement.id") == "search", 10)
    page.press("pr\ue007")
    page.sees("Tasks", "0 of")
    assert page.driver.current_url.endswith("#/tasks?search=pr")
    assert page.complaints() == []


def test_nothing_is_wider_than_a_telephone(programs: Programs, opened: Opened):
    _, address = programs.hub()
    queues = ",".join(["default", *("q" * 40 + str(number) for number in range(5))])
    programs.worker(address, "--name", "p" * 60, "--queues", queues)
    page = opened(start(programs, address, "--allow", "cancel,stack,pause,drain"))
    with Mesh(address):
        assert task(workload.refuse).with_options(name="n" * 200).submit("t" * 3000).exception(20)
    page.go("errors")
    page.sees("Refusal")
    for width in (360, 640, 1280):
        for dark in (False, True):
            page.size(width, dark=dark)
            for screen in SCREENS:
                page.go(screen)
                page.sees("Data of")
                page.run(OPEN)
                assert page.run("return document.documentElement.scrollWidth") <= width, (screen, width)


def test_actions_are_confirmed_and_done(programs: Programs, gates, opened: Opened):
    _, address = programs.hub()
    programs.worker(address, "--name", "steady")
    page = opened(start(programs, address, "--allow", "cancel,pause,resume"))
    with Mesh(address) as mesh:
        held = mesh.submit(wait_at, gates().path)
        page.go("pools")
        page.click("pause steady")
        page.sees("Pause pool steady? It takes no new work")
        page.click("Pause the pool")
        page.sees("paused")
        assert "drain steady" not in page.text()
        page.go(f"task?id={held.task_id}")
        page.click("Cancel the task")
        page.sees("Cancel this task (running)?")
        page.run("document.querySelector('dialog .primary').click()")
        wait_until(held.cancelled, 20)
        page.go("events")
        page.sees("operator.action", "verb cancel", "verb pause")
    assert page.complaints() == []


def test_a_page_tells_that_the_hub_is_away_and_goes_on_when_it_is_back(programs: Programs, opened: Opened):
    address = lasting_address()
    hub, _ = programs.hub(address)
    page = opened(start(programs, address))
    page.sees("Data of")
    hub.kill()
    page.sees(AWAY)
    programs.hub(address)
    programs.worker(address, "--name", "back")
    page.sees("back", timeout=30)
    wait_until(lambda: AWAY not in page.text(), 15)


def test_without_a_token_there_is_a_form_for_it(programs: Programs, opened: Opened):
    _, address = programs.hub()
    url = start(programs, address)
    page = opened(url.partition("#")[0])
    page.sees("show its token here")
    page.run("document.getElementById('token').focus()")
    page.press("wrong\ue007")
    page.sees("this is not the token")
    page.run("document.getElementById('token').value = arguments[0]", url.partition("#t=")[2])
    page.click("Enter")
    page.sees("Overview", "Data of")
    page.click("Log out")
    page.sees("show its token here")


@pytest.mark.slow
def test_a_queue_that_nobody_serves_is_named(programs: Programs, opened: Opened):
    _, address = programs.hub()
    programs.worker(address)
    page = opened(start(programs, address))
    with Mesh(address):
        waits = task(workload.add).with_options(queue="gpu").submit(1, 2)
        page.go(f"task?id={waits.task_id}")
        page.sees("queue 'gpu': no pool serves it", "queued")
        waits.cancel()
