"""A picture of the dashboard's overview, by Debian's Chromium: for the page of the docs."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

SIZE = (1280, 900)
FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "no-first-run",
    "disable-background-networking",
    "disable-sync",
)


@contextlib.contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Open a browser without a screen, until the end of the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"user-data-dir={profile}", "window-size={},{}".format(*SIZE)):
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            yield driver
        finally:
            driver.quit()


def take(url: str, folder: Path, sentence: str) -> None:
    """Write the picture, once the page says the sentence."""
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as driver:
        wait = WebDriverWait(driver, 20)
        driver.get(url)
        for part in (sentence, "QUEUES"):
            wait.until(lambda _, part=part: part in driver.find_element("css selector", "main").text)
        height = driver.execute_script("return document.documentElement.scrollHeight")
        driver.set_window_size(SIZE[0], max(SIZE[1], height + 150))
        driver.save_screenshot(str(folder / "dashboard-overview.png"))
