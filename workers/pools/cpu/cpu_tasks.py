"""Tasks that keep a CPU busy."""

import lzma

from taskmesh import task


@task(queue="cpu", retries=2)
def pack(data: bytes, preset: int = 6) -> bytes:
    """The data, compressed as LZMA does; the higher the preset, the longer it takes."""
    return lzma.compress(data, preset=preset)


@task(queue="cpu", retries=2)
def primes_below(limit: int) -> int:
    """How many primes there are below a limit (sieve of Eratosthenes)."""
    sieve = bytearray([1]) * max(limit, 2)
    sieve[:2] = b"\0\0"
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, len(sieve), number)))
    return sum(sieve[:limit])
