"""The process that Spark starts as a UDF worker: a gRPC server whose sessions run on a mesh."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from taskmesh.errors import TaskMeshError
from taskmesh.spark.udf_worker.protocol import SERVICE, Protocol
from taskmesh.spark.udf_worker.session import Session

MOST_CALLS: Final = 1000
"""Threads are made as they are needed. Manage has to be answered however many sessions there are."""
GRACE_S: Final = 5.0
"""Seconds for sessions to end after SIGTERM."""
_LOOK_S: Final = 1.0
_UNLIMITED: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class UdfWorkerServer:
    """Serves sessions at one address until it is told to end.

    Args:
        address: as gRPC writes it, such as "unix:/PATH".
    """

    def __init__(self, address: str) -> None:
        self._parent = os.getppid()  # before Spark sees the socket: later it may be another's
        self._protocol = Protocol()
        self._managed = self._protocol.message("WorkerResponse")
        self._sessions: set[Session] = set()
        self._ending = threading.Event()
        self._draining = False
        self._server = grpc.server(ThreadPoolExecutor(MOST_CALLS), options=_UNLIMITED)
        execute = grpc.stream_stream_rpc_method_handler(
            self._execute, self._protocol.message("UdfRequest").FromString, _serialized
        )
        manage = grpc.unary_unary_rpc_method_handler(
            self._manage, self._protocol.message("WorkerRequest").FromString, _serialized
        )
        calls = {"Execute": execute, "Manage": manage}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, calls)])
        self._server.add_insecure_port(address)

    def run(self) -> None:
        """Serve until SIGTERM, a Shutdown request or the end of the parent; only in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ending.set())
        self._server.start()
        while not self._ending.wait(_LOOK_S) and os.getppid() == self._parent:
            pass
        for session in list(self._sessions):
            session.end(TaskMeshError("the UDF worker has been told to end"))
        self._server.stop(GRACE_S).wait()

    def _execute(self, requests: Iterator[Any], call: Any) -> Iterator[Any]:
        session = Session(self._protocol, requests)
        call.add_callback(session.end)
        self._sessions.add(session)
        try:
            yield from session.responses()
        finally:
            self._sessions.discard(session)
            self._end_if_drained()

    def _manage(self, request: Any, call: Any) -> Any:
        if request.WhichOneof("manage") != "shutdown":
            return self._managed(heartbeat={"metrics": {"sessions": str(len(self._sessions))}})
        self._draining = True
        settled = self._end_if_drained()
        if request.shutdown.cancel_sessions:
            self._ending.set()
        return self._managed(shutdown={"sessions_settled": settled})

    def _end_if_drained(self) -> bool:
        drained = self._draining and not self._sessions
        if drained:
            self._ending.set()
        return drained


def _serialized(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker as Spark starts it."""
    parser = argparse.ArgumentParser(description="A worker of Spark's UDF worker protocol (a prototype).")
    parser.add_argument("--id", default="", help="Spark's name for this worker")
    parser.add_argument("--connection", required=True, help="path of the Unix domain socket to listen at")
    UdfWorkerServer(f"unix:{parser.parse_args(arguments).connection}").run()
    return 0
