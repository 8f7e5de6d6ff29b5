"""Starts and spans of tasks, as these have stamped them: how many there were at a time, or in a window."""


def most_in(times: list[float], seconds: float) -> int:
    """Return the most starts in any window of this length."""
    times = sorted(times)
    first = most = 0
    for place, when in enumerate(times):
        while times[first] <= when - seconds:
            first += 1
        most = max(most, place - first + 1)
    return most


def most_at_a_time(spans: list[tuple[float, float]]) -> int:
    """Return the most spans that have a moment in common."""
    events = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most
