"""The dashboard over HTTP, with a real hub and a worker: who may read, who may act, and how it ends."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from taskmesh import Mesh, task
from taskmesh.dashboard.access import FAILURES, STREAMS_OF_ONE
from tests.dashboard.browser import Browser, browser_of, inside, seen
from tests.harness.gate import wait_at
from tests.harness.ports import lasting_address
from tests.harness.program import outcome_of, timed_lines
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "taskmesh" / "dashboard" / "static"
VENDORED = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-license.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
TEXT = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e{{7*7}}"
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|style=|setAttribute\(.style"
)
DATA = ("/feed", "/ask/tasks", "/ask/errors")


def start(programs: Programs, address: str, *options: str):
    """A dashboard of a hub, at any port."""
    return programs.start("dashboard", "--address", address, "--http", "127.0.0.1:0", "--json", *options)


@pytest.mark.smoke
def test_pages_follow_a_mesh_after_the_token_was_shown(programs: Programs, gates):
    _, address = programs.hub()
    programs.worker(address, "--name", "steady", slots=2)
    browser = browser_of(start(programs, address))
    assert [browser.get(path)[0] for path in DATA] == [401] * 3
    assert browser.enter() == 200
    with Mesh(address) as mesh:
        gate = gates()
        held = mesh.submit(wait_at, gate.path)
        news = seen(browser, lambda each: not each["error"] and each["totals"]["busy"] == 1)
        assert news["status"]["pools"][0]["pool"] == "steady"
        status, tasks = browser.get("/ask/tasks?argument=running")
        assert (status, [task["task_id"] for task in tasks]) == (200, [held.task_id])
        assert browser.get(f"/ask/task?argument={held.task_id}")[1]["why"].startswith("steady/")
        gate.open()
        held.result(20)
    seen(browser, lambda each: each["status"]["ended"]["succeeded"] == 1)


def test_a_cookie_is_no_script_s_and_no_other_site_s(programs: Programs):
    _, address = programs.hub()
    browser = browser_of(start(programs, address))

    assert browser.enter("w" * 43) == 401
    assert browser.enter() == 200
    cookie = browser.headers["set-cookie"]
    assert {part.strip() for part in cookie.split(";")[1:]} == {
        "HttpOnly",
        "SameSite=Strict",
        "Path=/",
        "Max-Age=43200",
    }
    assert browser.get("/ask/tasks")[0] == 200
    assert browser.get("/ask/tasks", Sec_Fetch_Site="cross-site")[0] == 403
    assert browser.post("/session/end", {})[0] == 200
    assert browser.get("/ask/tasks")[0] == 401


def test_what_no_page_of_the_dashboard_sends_is_refused(programs: Programs):
    _, address = programs.hub()
    browser = inside(start(programs, address, "--allow", "cancel"))

    assert browser.get("/", Host="mesh.example")[0] == 403
    assert browser.get("/ask/tasks", Host="localhost.example")[0] == 403
    for odd in (
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Content_Type": "text/plain"},
        {"Host": "evil.example"},
    ):
        assert browser.post("/do/cancel", {"target": "0" * 32}, **odd)[0] == 403, odd
    with browser.send("POST", "/do/cancel", "{}", Content_Type="application/json") as bare:
        assert bare.status == 403
    assert browser.post("/session", {"token": "x" * 70_000})[0] == 413
    assert browser.post("/session", ["x"])[0] == 400
    with browser.send("OPTIONS", "/ask/tasks", Origin="http://evil.example") as preflight:
        assert preflight.status == 403
        assert "access-control-allow-origin" not in preflight.headers


def test_every_answer_has_the_strict_policy(programs: Programs):
    _, address = programs.hub()
    browser = inside(start(programs, address))

    for path in ("/", "/static/uplot.js", "/ask/tasks", "/ask/nothing", "/nowhere"):
        with browser.send("GET", path) as response:
            policy = response.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
            assert "trusted-types 'none'" in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Cache-Control"] in ("no-store", "no-cache")


def test_it_reads_only_and_what_is_allowed_is_an_event(programs: Programs):
    _, address = programs.hub()
    programs.worker(address, "--name", "steady")
    reader = inside(start(programs, address))
    assert [reader.post(f"/do/{verb}", {"target": "steady"})[0] for verb in ("pause", "drain", "limit")] == [
        403
    ] * 3
    program = start(programs, address, "--allow", "pause,resume")
    browser = inside(program)

    assert browser.post("/do/drain", {"target": "steady"})[0] == 403
    assert browser.post("/do/pause", {"target": "nobody"})[0] == 409
    assert browser.post("/do/pause", {"target": "steady"})[0] == 200
    seen(browser, lambda each: each["status"]["pools"][0]["state"] == "paused")
    actions = [each for each in browser.get("/ask/events")[1] if each["kind"] == "operator.action"]
    assert [(each["verb"], each["target"]) for each in actions] == [("pause", "steady")]
    logged = [each for each in program.events("stderr") if each["event"] == "dashboard.action"]
    assert [each["target"] for each in logged] == ["nobody", "steady"]


def test_the_token_is_in_no_log(programs: Programs, tmp_path: Path):
    _, address = programs.hub()
    file = tmp_path / "token"
    file.write_text("t" * 40)
    file.chmod(0o600)
    program = start(programs, address, "--token-file", str(file))
    browser = browser_of(program)

    assert browser.token == ""
    assert browser.enter("t" * 40) == 200
    assert [browser.enter("x" * 40) for _ in range(FAILURES + 1)] == [401] * (FAILURES + 1)
    file.write_text("n" * 40)
    assert browser.enter("t" * 40) == 401
    assert browser.enter("n" * 40) == 200
    browser.get("/ask/tasks")
    program.end()
    assert re.search("t{40}|n{40}", program.text() + program.errors) is None


def test_streams_are_bounded_and_end_with_the_program(programs: Programs):
    hub, address = programs.hub()
    program = start(programs, address)
    browser = inside(program)
    with contextlib.ExitStack() as held:
        for _ in range(STREAMS_OF_ONE):
            assert held.enter_context(browser.stream()).status == 200
        assert browser.get("/feed")[0] == 503
        program.terminate()
        assert program.wait(3) == 0, program.report()
    assert hub.alive


def test_a_closed_page_gives_its_stream_back(programs: Programs):
    _, address = programs.hub()
    browser = inside(start(programs, address))
    for _ in range(3):
        with contextlib.ExitStack() as held:
            for _ in range(STREAMS_OF_ONE):
                held.enter_context(browser.stream())
        wait_until(lambda: _opens(browser), 10, "a stream is free again")


def _opens(browser: Browser) -> bool:
    with browser.stream() as stream:
        return stream.status == 200


def test_a_hub_that_is_away_is_told_and_comes_back(programs: Programs):
    address = lasting_address()
    program = start(programs, address)
    browser = inside(program)
    assert seen(browser, lambda each: each["error"])["error"]
    assert browser.get("/ask/tasks")[0] == 503
    hub, _ = programs.hub(address)
    seen(browser, lambda each: not each["error"])
    hub.kill()
    seen(browser, lambda each: each["error"])
    programs.hub(address)
    seen(browser, lambda each: not each["error"])
    os.kill(program.pid, signal.SIGTERM)
    assert program.wait(3) == 0


def test_a_dashboard_that_stands_or_is_killed_is_no_matter_for_the_mesh(programs: Programs):
    _, address = programs.hub()
    programs.worker(address)
    program = start(programs, address)
    browser = inside(program)
    seen(browser, lambda each: not each["error"])
    with Mesh(address) as mesh:
        program.stop()
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        program.kill()
        assert mesh.submit(workload.add, 2, 2).result(20) == 4


def test_hostile_texts_are_data(programs: Programs):
    _, address = programs.hub()
    programs.worker(address)
    browser = inside(start(programs, address))
    hostile = task(workload.refuse).with_options(name=TEXT[:100])
    with Mesh(address):
        assert hostile.submit(TEXT).exception(20) is not None
        with browser.send("GET", "/ask/errors") as response:
            assert response.headers["Content-Type"] == "application/json"
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            (group,) = json.loads(response.read())["groups"]
    assert (group["name"], group["samples"][0]["text"]) == (TEXT[:100], TEXT)


def test_addresses_beyond_loopback_take_a_token_of_their_own_and_a_proxy(programs: Programs, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("t" * 40)
    file.chmod(0o600)
    for options in ((), ("--token-file", str(file)), ("--behind-proxy", "mesh.example")):
        refused = programs.run("dashboard", "--http", "0.0.0.0:0", *options)
        assert refused.returncode == 2
        assert "beyond loopback" in refused.stderr
    assert programs.run("dashboard", "--allow", "cancel,replay").returncode == 2
    _, address = programs.hub()
    line = ("--token-file", str(file), "--behind-proxy", "mesh.example")
    program = start(programs, address, *line)
    assert program.ready()["url"] == "https://mesh.example/"


def test_what_is_vendored_is_as_it_was_published():
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in VENDORED} == VENDORED


def test_no_page_makes_markup_of_text():
    for file in (*STATIC.glob("*.js"), *STATIC.glob("*.html")):
        if file.name not in VENDORED:
            text = file.read_text(encoding="utf-8")
            assert MARKUP.findall(text) == [], file


def test_without_the_extra_it_says_in_one_line_what_to_install(tmp_path: Path):
    code = "import sys; sys.modules['uvicorn'] = None; sys.argv = ['taskmesh', 'dashboard']; "
    told = outcome_of(
        [sys.executable, "-c", f"{code}from taskmesh.cli import main; sys.exit(main())"], tmp_path
    )

    assert told.returncode == 2
    [(_, said)] = timed_lines(told.stderr)
    assert said == "the dashboard needs uvicorn: `pip install '.[dashboard]'` in a clone of taskmesh"
