"""The programs of the incident: a hub, three pools, a dashboard, and what they say is wrong."""

import json
import os
import signal
import subprocess
import sys
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
HAS_DASHBOARD = all(find_spec(name) for name in ("starlette", "uvicorn"))


class Programs:
    """A hub, pools and a dashboard as processes, until `close`.

    Attributes:
        address: the hub's.
        url: the dashboard's, with its token; empty without the extra.
    """

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.address: str = self.start("hub", "hub", "--bind", "tcp://127.0.0.1:0")["gateway"]
        for pool, queue in (("works", "default"), ("paused", "slow"), ("frozen", "icy")):
            self.start(
                pool, "worker", "--address", self.address, "-c", "2", "--queues", queue, "--name", pool
            )
        self.url = ""
        if HAS_DASHBOARD:
            self.url = self.start("page", "dashboard", "--address", self.address, "--http", "127.0.0.1:0")[
                "url"
            ]

    def start(self, name: str, *arguments: str) -> dict[str, Any]:
        """Start a program; return what it says when it is ready."""
        command = [sys.executable, "-m", "taskmesh", *arguments, "--json"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        }
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.running[name] = process
        assert process.stdout is not None
        return json.loads(process.stdout.readline())

    def run(self, *arguments: str) -> str:
        """Run a command; return what it prints."""
        command = [sys.executable, "-m", "taskmesh", *arguments, "--address", self.address]
        return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a program."""
        self.running[name].send_signal(number)

    def top(self) -> str:
        """Return a frame of `taskmesh top`, without its line breaks."""
        return " ".join(self.run("top", "--once", "--interval", "0.1").split())

    def page(self, sentence: str) -> str:
        """Return what the page is told: that sentence, or what it says for ten seconds instead."""
        parts = urlsplit(self.url)
        site = f"http://{parts.netloc}"
        connection = HTTPConnection(parts.netloc, timeout=20)
        try:
            headers = {"Origin": site, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
            token = json.dumps({"token": parts.fragment.removeprefix("t=")})
            connection.request("POST", "/session", token, headers)
            answer = connection.getresponse()
            answer.read()
            cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
            connection.request("GET", "/feed", headers={"Cookie": cookie})
            lines = connection.getresponse()
            said, messages = "", 0
            while sentence not in said and messages < 10:
                kind, _, data = lines.readline().decode().partition(": ")
                if kind == "data":
                    messages += 1
                    said = " ".join(json.loads(data).get("status", {}).get("verdicts", ()))
            return said
        finally:
            connection.close()

    def close(self) -> None:
        """End all."""
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.running.values():
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()
