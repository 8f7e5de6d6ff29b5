"""Tasks that keep a CPU busy."""

import lzma

from taskmesh import task


@task(queue="cpu", retries=2)
def pack(data: bytes, preset: int = 6) -> bytes:
    """Compress data by LZMA; a higher preset takes longer."""
    return lzma.compress(data, preset=preset)


@task(queue="cpu", retries=2)
def primes_below(limit: int) -> int:
    """Count the primes below a limit (sieve of Eratosthenes)."""
    sieve = bytearray([1]) * max(limit, 2)
    sieve[:2] = b"\0\0"
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, len(sieve), number)))
    return sum(sieve[:limit])
