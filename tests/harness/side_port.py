"""Asking a side port, as a probe or a scraper does."""

import http.client
from urllib.parse import urlsplit


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and text of the answer."""
    parts = urlsplit(url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        link.request(method, url.partition(parts.netloc)[2], headers=headers)
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


def bearer(word: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {word}"}


def samples(url: str) -> dict[str, float]:
    """Prometheus samples by name and labels."""
    status, text = ask(f"{url}/metrics")
    assert status == 200, text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}
