"""PeerErrors about peers: all are counted, few are told."""

from taskmesh.security import peer_errors as module
from taskmesh.security.peer_errors import AT_ONCE, EVERY, PeerErrors


def test_the_first_are_told_then_one_in_ten_seconds_says_how_many(monkeypatch):
    lines: list[tuple[str, dict[str, object]]] = []
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    book = PeerErrors(lambda kind, fields: lines.append((kind, fields)))

    for _ in range(1000):
        book.add("denied", {"at": "gateway"})
    assert len(lines) == AT_ONCE
    now[0] += EVERY
    for _ in range(1000):
        book.add("denied", {"at": "gateway"})
    book.add("refused", {"from": "somebody"})

    assert lines[AT_ONCE:] == [
        ("denied", {"at": "gateway", "count": 1001}),
        ("refused", {"from": "somebody"}),
    ]
    assert book.counts == {"denied": 2000, "refused": 1}
