"""Map-reduce: count the words of each text, then merge the counts in pairs, on the workers."""

from collections import Counter

from taskmesh import Mesh, task


@task
def count(text: str) -> Counter[str]:
    return Counter(text.split())


@task
def merge(counts: list[Counter[str]]) -> Counter[str]:
    return sum(counts, Counter())


with Mesh(workers=2):
    parts = [count.submit(text) for text in ("a b a", "b c", "a c", "c c")]
    while len(parts) > 1:  # no task gets more than two counts, however many texts there are
        parts = [merge.submit(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    print(sorted(parts[0].result(timeout=30).items()))  # [('a', 3), ('b', 2), ('c', 4)]
