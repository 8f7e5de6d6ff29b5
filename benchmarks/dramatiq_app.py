"""The Dramatiq actor that its workers import. All is pickled, as with the other peers."""

from __future__ import annotations

import os
import pickle
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.encoder import Encoder
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

URL = f"{os.environ['BENCHMARK_REDIS']}/0"


class Pickled(Encoder):
    """Messages and results as pickles: the rows send functions."""

    def encode(self, data: Any) -> bytes:
        """Return the bytes of a message."""
        return pickle.dumps(data)

    def decode(self, data: bytes) -> Any:
        """Return the message of some bytes."""
        return pickle.loads(data)


dramatiq.set_encoder(Pickled())
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL, encoder=Pickled())))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True, max_retries=0)
def call(work: Any, argument: Any) -> Any:
    """Run one of the workloads."""
    return work(argument)
