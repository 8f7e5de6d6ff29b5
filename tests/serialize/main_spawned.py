"""Run as __main__ by test_code: what is of __main__ goes to a slot from a process of multiprocessing."""

import multiprocessing

from tests.serialize.echo_slot import call_in_slot

FACTOR = 3


class Size:
    def __init__(self, size):
        self.size = size

    def grown(self):
        return Size(self.size * FACTOR)


def grown(size):
    return [size.grown()]


def child(queue):
    assert Size.__module__ == "__mp_main__"
    [size] = call_in_slot(grown, Size(2), check="'tests.serialize.main_spawned' not in sys.modules")
    assert isinstance(size, Size)
    assert call_in_slot(lambda size: size.grown(), size).size == 18
    assert call_in_slot(getattr, size, "size") == 6
    queue.put(size)


def main():
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        process.join()
        assert process.exitcode == 0
        size = queue.get()
        assert isinstance(size, Size)
        assert size.size == 6
    print("all held")  # noqa: T201


if __name__ == "__main__":
    main()
