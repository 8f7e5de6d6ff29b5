"""Calls that are larger than their hub takes: they fail here, for on the way they would cut the link."""

from __future__ import annotations

import msgspec

from taskmesh.wire.runs import Failed, Run

TOO_LARGE = "taskmesh.errors.TooLarge"


def without_large(runs: list[Run], limit: int) -> tuple[list[Run], list[Failed]]:
    """Runs without the tasks whose payload is above `limit` bytes, and a failure for each of these."""
    kept: list[Run] = []
    failed: list[Failed] = []
    for run in runs:
        sizes = [len(payload) for payload in run.payloads]
        if max(sizes, default=0) <= limit:
            kept.append(run)
            continue
        fits = [i for i, size in enumerate(sizes) if size <= limit]
        failed += [
            failure(seq, size, limit) for seq, size in zip(run.seqs, sizes, strict=True) if size > limit
        ]
        if fits:
            seqs, payloads = [run.seqs[i] for i in fits], [run.payloads[i] for i in fits]
            kept.append(msgspec.structs.replace(run, seqs=seqs, payloads=payloads))
    return kept, failed


def failure(seq: int, size: int, limit: int) -> Failed:
    """The end of a task whose call the hub would not take."""
    text = (
        f"its arguments take {size:,} bytes, and its hub takes max_payload = {limit:,} only. Cure: pass a "
        "path or a key instead of the data, split it over several tasks, or raise max_payload on the hub too"
    )
    return Failed(0, seq, 0, "result", type_name=TOO_LARGE, text=text)
