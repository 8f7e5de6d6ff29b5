"""Schedules over tcp and with keys: signatures, and restarts."""

from pathlib import Path

import pytest

from taskmesh import Schedule, current_task, task
from taskmesh.core.specs import spec_number
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import FIRING, LaneRun, Run, Spec
from taskmesh.messages.schedules import Declaration, Timing, split_tick, with_tick
from taskmesh.security.keys import KeyFolder
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.serialize.payload import dumps
from tests.harness.cluster import Cluster
from tests.harness.journal import Journal
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

END_S = 30


def append(path: str, line: str) -> None:
    Journal(path).append(line)


def test_a_program_that_is_open_declares_its_schedules_to_a_new_hub(programs: Programs, tmp_path: Path):
    journal = tmp_path / "journal"
    lines = Journal(journal).lines

    @task(schedule=Schedule(0.1, overlap="allow"))
    def tick(path: str = str(journal)) -> None:
        append(path, str(current_task().scheduled_for))

    cluster = Cluster(programs)
    cluster.start_hub()
    cluster.start_worker("timed", slots=1)
    with cluster.mesh():
        wait_until(lambda: len(lines()) > 3, END_S)
        cluster.hub.kill()
        cluster.start_hub(bind=cluster.address)
        before = len(lines())
        wait_until(lambda: len(lines()) > before + 3, END_S)
        assert tick.scheduled is not None

    assert len(set(lines())) == len(lines()), "in memory, never twice"


def test_a_schedule_with_keys_is_signed_and_runs(programs: Programs, ring: Ring, tmp_path: Path):
    keyed = Cluster.keyed(programs, ring)
    journal = str(tmp_path / "journal")

    with keyed.mesh() as mesh:
        mesh.schedule("signed", append, journal, "x", when=0.2)
        wait_until(lambda: len(Journal(journal).lines()) > 2, END_S)
        assert mesh.unschedule("signed")
        assert not [event for event in mesh.events() if event["kind"] == "task.failed"]
        assert mesh.submit(workload.add, 1, 2).result(END_S) == 3


class TestSignatures:
    spec = Spec(b"f", "f", kind=FIRING)

    def signer(self, ring: Ring) -> PayloadSigner:
        return PayloadSigner(KeyFolder(ring.peer("client", "ann")).mesh_keys())

    def tasks(self, signer: PayloadSigner, spec: Spec, payload: bytes) -> LaneRun:
        run = LaneRun(spec_number(spec), 7, 1, 0, [3], [payload])
        return signer.tasks(m.Tasks(1, 1, 1, 0, 0.0, [(spec_number(spec), spec)], [run])).runs[0]

    def test_a_firing_holds_for_any_tick_and_task_of_its_spec(self, ring: Ring):
        signer = self.signer(ring)
        signed = signer.declaration(Declaration("n", Timing(period=1.0), self.spec, b"call"))

        run = self.tasks(signer, self.spec, with_tick(5.0, signed.payload))

        assert (run.spec, split_tick(run.payloads[0])) == (spec_number(self.spec), (5.0, b"call"))

    @pytest.mark.parametrize("lie", ["unsigned", "short", "changed", "another function", "a task's"])
    def test_a_hub_that_lies_gets_nothing_run(self, ring: Ring, lie: str):
        signer = self.signer(ring)
        signed = signer.declaration(Declaration("n", Timing(period=1.0), self.spec, b"call")).payload
        plain = Spec(b"f", "f")
        submit = m.Submit(1, [(spec_number(plain), plain)], [Run(spec_number(plain), 0, [3], [b"call"])])
        of_task = signer.submit(submit, 7, lambda _: []).runs[0].payloads[0]
        other = Spec(b"g", "f", kind=FIRING)
        spec, payload = {
            "unsigned": (self.spec, with_tick(5.0, dumps(((), {})))),
            "short": (self.spec, b"x"),
            "changed": (self.spec, with_tick(5.0, signed[:-1] + b"?")),
            "another function": (other, with_tick(5.0, signed)),
            "a task's": (self.spec, with_tick(5.0, of_task)),
        }[lie]

        run = self.tasks(signer, spec, payload)

        assert run.spec != spec_number(spec), "it is replaced by a task that raises"

    def test_the_call_of_a_schedule_is_no_task(self, ring: Ring):
        signer = self.signer(ring)
        signed = signer.declaration(Declaration("n", Timing(period=1.0), self.spec, b"call")).payload
        plain = Spec(b"f", "f")

        assert self.tasks(signer, plain, signed).spec != spec_number(plain)
