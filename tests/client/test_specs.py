"""Specs travel once each, and are remembered up to a bound."""

from taskmesh.cli.dead import submit_again
from taskmesh.client.runs import SPECS_REMEMBERED, SpecsSent
from taskmesh.client.submitter import client_of
from taskmesh.messages.mesh_messages import Answer
from taskmesh.messages.runs import Run, Spec
from taskmesh.serialize.code import dump_function
from taskmesh.serialize.payload import dumps_call
from taskmesh.serialize.sources import source_of

WAIT_S = 10


def double(number):
    return 2 * number


def test_a_spec_has_the_source_of_a_module_whose_name_travels(mesh, port):
    for function in (double, lambda text: text, len):
        mesh.submit(function, "ab").result(WAIT_S)

    sources = {spec.name.rpartition(".")[2]: spec.source for spec in port._specs.values()}
    assert sources == {"double": source_of(__name__), "<lambda>": "", "len": ""}
    assert sources["double"].endswith(__file__)


def test_a_dead_letter_that_runs_again_has_no_source_as_its_module_may_be_mended(mesh, port):
    spec = Spec(dump_function(double), "double", source="0123456789abcdef /before.py")
    letter = Answer(1, "a" * 32, specs=[spec], runs=[Run(1, 1, [1], [dumps_call((4,), {}, where="double")])])

    assert submit_again(client_of(mesh), letter).result(WAIT_S) == 8
    assert {spec.source for spec in port._specs.values()} == {""}


def test_a_spec_is_new_once():
    sent = SpecsSent()

    assert [sent.is_new(number) for number in (7, 8, 7, 8)] == [True, True, False, False]


def test_specs_without_end_are_not_remembered_without_end():
    sent = SpecsSent()

    assert all(sent.is_new(number) for number in range(3 * SPECS_REMEMBERED))

    assert len(sent._known) <= SPECS_REMEMBERED
    assert sent.is_new(0)
