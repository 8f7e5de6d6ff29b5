"""Signed payloads: clients sign tasks, pools verify them before a slot sees them, and sign results.

A payload whose signature is wrong never reaches an unpickler: instead of the task's function and arguments,
which the hub could have made up, a slot gets a function that raises the error.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import msgspec

from taskmesh.core.ids import SEQ_BITS, parse
from taskmesh.core.specs import signed_bytes, spec_number
from taskmesh.errors import BadSignature
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import (
    ATTACHMENT,
    ATTACHMENT_NAME,
    FIRING,
    PROMISE,
    PROMISE_NAME,
    SINK_VALUE,
    SINK_VALUE_NAME,
    DoneRun,
    Failed,
    LaneRun,
    Run,
    Spec,
    Value,
)
from taskmesh.messages.schedules import TICK, Declaration, split_tick, with_tick
from taskmesh.messages.signing import (
    NO_KEY,
    NO_SIGNATURE,
    Signer,
    is_signed,
    refuse,
    split_key,
    unsigned,
    with_key,
)
from taskmesh.serialize.code import dump_function
from taskmesh.serialize.payload import dumps

TASK, DONE, FAILED, SCHEDULE = b"t", b"d", b"f", b"s"
PROMISED = sha256(PROMISE_NAME.encode()).digest()
"""Stands for the digest of the specs of promises: who fulfils one does not know its options."""
ATTACHED = sha256(ATTACHMENT_NAME.encode()).digest()
"""Stands for the digest of the specs of attachments: their outcomes are signed for the other task."""
PUT = sha256(SINK_VALUE_NAME.encode()).digest()
"""Stands for the digest of the specs of values in sinks: they are signed as results, for their consumers."""
_FIXED = {PROMISE: PROMISED, ATTACHMENT: ATTACHED, SINK_VALUE: PUT}
UNKNOWN = bytes(sha256().digest_size)
"""Stands for the digest of an unknown spec: nothing is signed for it."""
SPECS_KEPT = 100_000
"""Specs whose digest is remembered."""
KEYS_KEPT = 200_000
"""Tasks with a key, and attachments, that a client or pool may have under way with signed outcomes."""
ID_BYTES = 16
"""Bytes of a task's id: the context of an attachment."""
BAD_SIGNATURE = f"{BadSignature.__module__}.{BadSignature.__qualname__}"
Lookup = Callable[[Sequence[int]], list[tuple[int, Spec]]]


def _of_task(kind: bytes, client: int, seq: int) -> bytes:
    """Return the context in which an outcome is signed for one task."""
    return kind + struct.pack(">QQ", client, seq)


def _with_pickle(changed: Callable[[Any], Any], failure: Failed) -> Failed:
    """Return a failure whose pickled exception is signed or verified; without it if that has failed."""
    if not failure.pickled:
        return failure
    try:
        pickled = changed(failure.pickled)
    except BadSignature:
        pickled = b""
    return msgspec.structs.replace(failure, pickled=pickled)


def _of_key(kind: bytes, digest: bytes, key: str) -> bytes:
    """Return the context in which an outcome is signed for all tasks of one function and key."""
    return kind + b"key" + digest + key.encode()


class PayloadSigner:
    """Signs and verifies the payloads of whole messages, which are copied, never changed.

    Args:
        keys: the mesh key, and the former one while it is rotated. Without a key nothing is signed, and
            signed payloads are refused, with a text that says which file is missing.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._signer = Signer(keys) if keys else None
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._firings: set[int] = set()
        self._contexts: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    # --- of a client ----------------------------------------------------------------------------------------

    def submit(self, message: m.Submit, client: int, lookup: Lookup) -> m.Submit:
        """Sign tasks; `lookup` returns specs that travelled before."""
        signer = self._signer
        if signer is None:
            return message
        self._learn(message.specs)
        runs = []
        for run in message.runs:
            if run.spec not in self._digests:
                self._learn(lookup([run.spec]))
            if self._digests[run.spec] == PUT:
                runs.append(self._signed_values(signer, client, run))
                continue
            head, key = TASK + self._digests[run.spec], run.key.encode()
            payloads = [
                signer.sign(head + struct.pack(">QQ", client, seq) + key, payload)
                for seq, payload in zip(run.seqs, run.payloads, strict=True)
            ]
            if key:
                payloads = [with_key(key, payload) for payload in payloads]
                for seq in run.seqs:
                    self._share(client, seq, self._digests[run.spec], key)
            runs.append(msgspec.structs.replace(run, payloads=payloads))
        values = [self._signed_value(signer, client, value) for value in message.values]
        return msgspec.structs.replace(message, runs=runs, values=values)

    @staticmethod
    def _signed_values(signer: Signer, client: int, run: Run) -> Run:
        """Sign values for sinks as the results of the tasks that they stand for."""
        payloads = [
            signer.sign(_of_task(DONE, client, seq), payload)
            for seq, payload in zip(run.seqs, run.payloads, strict=True)
        ]
        return msgspec.structs.replace(run, payloads=payloads)

    def _signed_value(self, signer: Signer, client: int, value: Value) -> Value:
        """Sign an outcome as its pool has signed it: the client had verified that, and has taken it off."""
        if value.failed is not None:
            failed = _with_pickle(partial(signer.sign, _of_task(FAILED, client, value.seq)), value.failed)
            return msgspec.structs.replace(value, failed=failed)
        payload = signer.sign(_of_task(DONE, client, value.seq), value.payload)
        return msgspec.structs.replace(value, payload=payload)

    def fulfil(self, message: m.Fulfil) -> m.Fulfil:
        """Sign the outcome of a promise for its key: clients wait for it under numbers of their own."""
        signer = self._signer
        if signer is None:
            return message
        if message.failed is not None:
            failed = _with_pickle(
                partial(signer.sign, _of_key(FAILED, PROMISED, message.key)), message.failed
            )
            return msgspec.structs.replace(message, failed=failed)
        payload = signer.sign(_of_key(DONE, PROMISED, message.key), message.payload)
        return msgspec.structs.replace(message, payload=payload)

    def deliver(self, message: m.Deliver) -> m.Deliver:
        """Verify outcomes: a result with a wrong signature becomes a failure, an exception a text."""
        if self._signer is None:
            return message
        done: list[DoneRun] = []
        failed = [self._verified_failure(failure) for failure in message.failed]
        for run in message.done:
            good, bad = self._verified_run(run)
            done.append(good)
            failed += bad
        kept = [run for run in done if run.seqs]
        return m.Deliver(message.epoch, message.number, kept, failed, message.accepted)

    def sink_deliver(self, message: m.SinkDeliver) -> m.SinkDeliver:
        """Verify the outcomes of a sink."""
        if self._signer is None:
            return message
        copy = msgspec.structs.replace(message, done=[], failed_names=message.failed_names[:])
        copy.failed = [self._verified_failure(failure) for failure in message.failed]
        for run, name in zip(message.done, message.names, strict=True):
            good, bad = self._verified_run(run, may_be_bare=False)
            copy.done.append(good)
            copy.failed += bad
            copy.failed_names += [name] * len(bad)
        return copy

    def answer(self, message: m.Answer) -> m.Answer:
        """Take the signature off the call of a dead letter; one that is not valid becomes an error."""
        if not message.runs:
            return message
        [spec], [run] = message.specs, message.runs
        client, number = parse(message.value) >> SEQ_BITS, spec_number(spec)
        self._learn([(number, spec)])
        try:
            _, plain = self._verified_call(number, client, run.seqs[0], run.payloads[0])
        except BadSignature as error:
            return m.Answer(message.number, None, f"its call cannot be signed anew: {error}")
        return msgspec.structs.replace(message, runs=[msgspec.structs.replace(run, payloads=[plain])])

    def _verified_run(self, run: DoneRun, *, may_be_bare: bool = True) -> tuple[DoneRun, list[Failed]]:
        seqs: list[int] = []
        payloads: list[Any] = []
        bad: list[Failed] = []
        for seq, payload in zip(run.seqs, run.payloads, strict=True):
            try:
                is_bare = may_be_bare and not len(payload)  # it succeeded, and ignores its result
                payloads.append(payload if is_bare else self._opened(DONE, run.client, seq, payload))
                seqs.append(seq)
            except BadSignature as error:
                text = f"the result cannot be trusted: {error}"
                shown = run.attempt - run.returns
                bad.append(Failed(run.client, seq, shown, "signature", text=text, worker=run.worker))
        return msgspec.structs.replace(run, seqs=seqs, payloads=payloads), bad

    def _verified_failure(self, failure: Failed) -> Failed:
        if failure.type_name == BAD_SIGNATURE:
            return msgspec.structs.replace(failure, kind="signature", pickled=b"")
        return _with_pickle(partial(self._opened, FAILED, failure.client, failure.seq), failure)

    def declaration(self, declaration: Declaration) -> Declaration:
        """Sign the call of a schedule: for its spec alone, since the hub makes the tasks and their numbers.

        The spec says that it is a schedule's, so that the signature holds for no other task, nor another's
        for this.
        """
        signer = self._signer
        if signer is None:
            return declaration
        context = SCHEDULE + sha256(signed_bytes(declaration.spec)).digest()
        return msgspec.structs.replace(declaration, payload=signer.sign(context, declaration.payload))

    # --- of a pool ------------------------------------------------------------------------------------------

    def tasks(self, message: m.Tasks) -> m.Tasks:
        """Verify tasks; those with a wrong signature are replaced by tasks that raise the error."""
        specs = [(number, spec) for number, spec in message.specs if spec_number(spec) == number]
        self._learn(specs)
        runs: list[LaneRun] = []
        for run in message.runs:
            good, refused = self._sorted_out(run)
            runs += [each for each in (good, refused) if each.seqs]
            if refused.seqs:
                specs.append(self._refusal_spec)
        return msgspec.structs.replace(message, specs=specs, runs=runs)

    def _sorted_out(self, run: LaneRun) -> tuple[LaneRun, LaneRun]:
        """Return the tasks of a run with valid signatures, and tasks that raise the error for the others."""
        good = LaneRun(run.spec, run.client, run.attempt, run.returns, [], [])
        good.values = [self._verified_value(run.client, value) for value in run.values]
        needs = iter(run.needs)
        number = self._refusal_spec[0]
        refused = LaneRun(number, run.client, run.attempt, run.returns, [], [])
        for seq, payload in zip(run.seqs, run.payloads, strict=True):
            needed = next(needs, [])
            try:
                key, plain = self._verified_call(run.spec, run.client, seq, payload)
            except BadSignature as error:
                refused.seqs.append(seq)
                refused.payloads.append(dumps(((str(error),), {})))
            else:
                if key:
                    self._share(run.client, seq, self._digests[run.spec], key)
                good.seqs.append(seq)
                good.payloads.append(plain)
                if run.needs:
                    good.needs = [*good.needs, needed]
        return good, refused

    def _verified_call(self, spec: int, client: int, seq: int, payload: Any) -> tuple[bytes, Any]:
        """Return the key of a task, empty if it has none, and its call without the signature.

        Raises:
            BadSignature: it has none, or a wrong one.
        """
        if spec in self._firings:
            return b"", self._verified_firing(spec, payload)
        key, signed = split_key(payload) if self._signer is not None else (b"", payload)
        context = TASK + self._digests.get(spec, UNKNOWN) + struct.pack(">QQ", client, seq) + key
        return key, self._verified(context, signed)

    def _verified_firing(self, spec: int, payload: Any) -> Any:
        """Return the call of a schedule without its signature, but with the time that the hub has given it.

        Raises:
            BadSignature: it has none, or a wrong one.
        """
        if len(payload) < TICK.size:
            raise BadSignature(NO_SIGNATURE)
        tick, signed = split_tick(payload)
        return with_tick(tick, self._verified(SCHEDULE + self._digests[spec], signed))

    def _verified_value(self, client: int, value: Value) -> Value:
        """Return an outcome of which the signature holds, or a failure in its place.

        The call that needs it names the task, and is signed itself: a hub can neither make an outcome up nor
        hand out another one.
        """
        kind = DONE if value.failed is None else FAILED
        key = value.key
        context = _of_key(kind, PROMISED, key) if key else _of_task(kind, client, value.seq)
        if value.failed is not None:
            failed = _with_pickle(partial(self._of_one, context), value.failed)
            return msgspec.structs.replace(value, failed=failed)
        try:
            payload = self._of_one(context, value.payload)
        except BadSignature as error:
            failure = Failed(client, value.seq, value.attempt, "signature", text=str(error))
            return msgspec.structs.replace(value, payload=b"", failed=failure)
        return msgspec.structs.replace(value, payload=payload)

    def results(self, message: m.Results) -> m.Results:
        signer = self._signer
        if signer is None:
            return message
        done = []
        for run in message.done:
            payloads = [
                self._sealed(signer, DONE, run.client, seq, payload)
                for seq, payload in zip(run.seqs, run.payloads, strict=True)
            ]
            done.append(msgspec.structs.replace(run, payloads=payloads))
        failed = [
            _with_pickle(partial(self._sealed, signer, FAILED, failure.client, failure.seq), failure)
            for failure in message.failed
        ]
        return msgspec.structs.replace(message, done=done, failed=failed)

    # --- both -----------------------------------------------------------------------------------------------

    def _share(self, client: int, seq: int, digest: bytes, key: bytes) -> None:
        """Have this task's outcome signed for every task of its function and key, or for another task."""
        attached = digest == ATTACHED
        self._contexts[client, seq] = bytes.fromhex(key.decode()) if attached else b"key" + digest + key
        while len(self._contexts) > KEYS_KEPT:
            self._contexts.popitem(last=False)

    def _sealed(self, signer: Signer, kind: bytes, client: int, seq: int, payload: Any) -> Any:
        """Sign an outcome for its task, and inside that for its key, if it has one: others wait under it."""
        if (context := self._contexts.get((client, seq))) is not None:
            payload = signer.sign(kind + context, payload)
        return signer.sign(_of_task(kind, client, seq), payload)

    def _opened(self, kind: bytes, client: int, seq: int, payload: Any) -> Any:
        """Return an outcome without its signatures: the one that says whose it is has to be right."""
        context = self._contexts.get((client, seq))
        if context is None or len(context) == ID_BYTES:  # of an attachment: the other task's id
            return self._of_one(_of_task(kind, client, seq) if context is None else kind + context, payload)
        inner = unsigned(payload) if is_signed(payload) else payload
        if not is_signed(inner):  # of a promise, which is signed for its key alone
            inner = payload
        return self._verified(kind + context, inner)

    def _of_one(self, context: bytes, payload: Any) -> Any:
        """Return an outcome that is signed for one task, perhaps for a key as well."""
        plain = self._verified(context, payload)
        return unsigned(plain) if is_signed(plain) else plain

    def _verified(self, context: bytes, payload: Any) -> Any:
        if self._signer is not None:
            return self._signer.verified(context, payload)
        if is_signed(payload):
            raise BadSignature(NO_KEY)
        return payload

    def _learn(self, specs: Sequence[tuple[int, Spec]]) -> None:
        for number, spec in specs:
            fixed = _FIXED.get(spec.kind)
            self._digests[number] = fixed or sha256(signed_bytes(spec)).digest()
            self._digests.move_to_end(number)
            if spec.kind == FIRING:
                self._firings.add(number)
        while len(self._digests) > SPECS_KEPT:
            self._firings.discard(self._digests.popitem(last=False)[0])

    @cached_property
    def _refusal_spec(self) -> tuple[int, Spec]:
        spec = Spec(dump_function(refuse), "taskmesh.refused")
        return spec_number(spec), spec


class ClientSigner:
    """Signs a client's calls, and verifies the outcomes that it is delivered.

    Args:
        keys: the mesh key, and the former one while it is rotated; empty for none: then nothing is signed.
        client: the client's id.
        specs_of: returns specs that travelled before.
    """

    def __init__(self, keys: Sequence[bytes], client: int, specs_of: Lookup) -> None:
        self._signer = PayloadSigner(keys)
        self._client = client
        self._specs_of = specs_of

    def signed(self, message: m.ClientMessage) -> m.ClientMessage:
        if isinstance(message, m.Submit):
            return self._signer.submit(message, self._client, self._specs_of)
        if isinstance(message, m.Fulfil):
            return self._signer.fulfil(message)
        if isinstance(message, m.PutSchedule):
            return m.PutSchedule(message.number, self._signer.declaration(message.declaration))
        return message

    def verified(self, message: m.ToClient) -> m.ToClient:
        """Return a message of the hub with its outcomes verified: what is not valid has become an error."""
        if isinstance(message, m.SinkDeliver):
            return self._signer.sink_deliver(message)
        if isinstance(message, m.Answer):
            return self._signer.answer(message)
        return self._signer.deliver(message) if isinstance(message, m.Deliver) else message
