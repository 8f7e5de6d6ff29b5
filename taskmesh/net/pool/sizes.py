"""What is too large for the wire: a result above `max_payload` becomes its task's failure, unsent."""

from __future__ import annotations

from taskmesh.errors import TooLarge
from taskmesh.serialize.payload import check_size
from taskmesh.wire import messages as m
from taskmesh.wire.runs import DoneRun, Failed


def hold_against(results: m.Results, limit: int) -> None:
    """Replaces successes whose result is larger than `limit` bytes by failures that say so.

    Changes the message itself, which the pool keeps until the hub has it: repeated, it is the same.
    """
    for failed in results.failed:
        if len(failed.pickled) > limit:
            failed.pickled = b""  # its type, text and frames travel all the same
    kept = []
    for run in results.done:
        if max(map(len, run.payloads), default=0) <= limit:
            kept.append(run)
            continue
        small = DoneRun(run.spec, run.client, run.attempt, run.worker, [], [], run.elapsed, run.returns)
        for seq, payload in zip(run.seqs, run.payloads, strict=True):
            try:
                check_size(payload, limit, "its result")
            except TooLarge as error:
                results.failed.append(failure(run, seq, error))
            else:
                small.seqs.append(seq)
                small.payloads.append(payload)
        if small.seqs:
            kept.append(small)
    results.done[:] = kept


def failure(run: DoneRun, seq: int, error: TooLarge) -> Failed:
    """The failure of a task whose result cannot travel; another attempt would not help."""
    return Failed(
        run.client,
        seq,
        run.attempt,
        "result",
        type_name=f"{type(error).__module__}.{type(error).__qualname__}",
        text=str(error),
        worker=run.worker,
        returns=run.returns,
    )
