"""The pipeline of the ZeroMQ guide with taskmesh.sockets alone: no hub, no ledger.

A ventilator, two workers and a collector count the primes below 200,000 in 200 pieces. If a worker dies,
every piece that was queued for it, in its own memory and in the kernel's buffers, is lost without notice;
the collector would wait ten seconds and give up. A slow worker gets as many pieces as a fast one.
`taskmesh.Mesh` solves both problems.
"""

from multiprocessing import get_context

from taskmesh.sockets import Context, Pull, Push, SocketOptions

WORKERS, PIECES, SIZE = 2, 200, 1000
KNOWN = 17_984


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def work(tasks: str, results: str) -> None:
    """A worker: counts the primes of each piece; an empty message means that there are no more."""
    options = SocketOptions(linger_ms=5000)  # its last results may still be on their way when it ends
    with Context() as context, Pull(context) as pull, Push(context, options) as push:
        pull.connect(tasks)
        push.connect(results)
        push.send(b"ready")
        for piece in iter(pull.recv, b""):
            first = int(piece)
            push.send(b"%d" % sum(map(is_prime, range(first, first + SIZE))))


def main() -> None:
    with Context() as context, Push(context) as ventilator, Pull(context) as collector:
        ends = ventilator.bind("tcp://127.0.0.1:*"), collector.bind("tcp://127.0.0.1:*")
        processes = [
            get_context("spawn").Process(target=work, args=ends, daemon=True) for _ in range(WORKERS)
        ]
        for process in processes:
            process.start()
        for _ in processes:  # else the worker that connects first would get all the work
            assert collector.recv(timeout=30) == b"ready"
        for piece in range(PIECES):
            ventilator.send(b"%d" % (piece * SIZE), timeout=10)
        total = sum(int(collector.recv(timeout=10)) for _ in range(PIECES))
        for _ in processes:
            ventilator.send(b"", timeout=10)
        for process in processes:
            process.join(10)
    print(f"{total} primes below {PIECES * SIZE}, counted by {WORKERS} workers in {PIECES} pieces")
    assert total == KNOWN


if __name__ == "__main__":
    main()
