"""Debian's Chromium without a screen, with what its pages have asked for and complained of."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.harness.requirement import require
from tests.harness.waiting import wait_until

OPTIONS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
    "window-size=1280,900",
)


class Chromium:
    """One browser with one page.

    Args:
        driver: selenium's.
        url: the dashboard's address, with the token.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.base = url.partition("#")[0]
        driver.get(url)

    def go(self, screen: str) -> None:
        """Choose a screen by its address, without loading the page anew."""
        self.run("location.hash = arguments[0]", f"#/{screen}")

    def run(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(code, *arguments)  # type: ignore[no-untyped-call]

    def text(self) -> str:
        """The text that a reader sees."""
        return str(self.run("return document.body.innerText"))

    def sees(self, *parts: str, timeout: float = 15) -> str:
        """Wait until all parts are on the page; return its text."""
        return wait_until(
            lambda: text if all(part in (text := self.text()) for part in parts) else "",
            timeout,
            f"{parts} on {self.driver.current_url}: {self.text()[-3000:]}",
            tick=0.05,
        )

    def click(self, name: str) -> None:
        """Click the button of this name once it is there."""
        found = f"//button[normalize-space()={name!r} or @aria-label={name!r}]"
        wait_until(lambda: self._clicked(found), 15, f"button {name}", tick=0.05)

    def _clicked(self, found: str) -> bool:
        with contextlib.suppress(Exception):  # it is not there yet, or is being replaced
            self.driver.find_element(By.XPATH, found).click()
            return True
        return False

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def size(self, width: int, *, dark: bool = False) -> None:
        """Give the page another width, and the system's preference for light or dark."""
        shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def complaints(self) -> list[str]:
        """Messages on the console since the last call: errors, and what the policy has forbidden."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def asked_elsewhere(self) -> list[str]:
        """The addresses besides the dashboard's that pages have asked for since the last call."""
        messages = [
            json.loads(entry["message"])["message"]
            for entry in self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        ]
        urls = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        assert urls
        return [url for url in urls if not url.startswith((self.base, "data:", "chrome:"))]


@contextlib.contextmanager
def chromium(url: str, folder: Path) -> Iterator[Chromium]:
    """Start a browser with the page of a dashboard, until the end of the block."""
    program, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    require(program and driver_program, "Chromium: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(program)
    for option in (*OPTIONS, f"user-data-dir={folder / 'profile'}"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(driver_program)))
    try:
        yield Chromium(driver, url)
    finally:
        driver.quit()


Opened = Callable[[str], Chromium]
