"""Specs travel once each, and are remembered up to a bound."""

from taskmesh.client.runs import SPECS_REMEMBERED, SpecsSent
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


def test_a_spec_is_new_once():
    sent = SpecsSent()

    assert [sent.is_new(number) for number in (7, 8, 7, 8)] == [True, True, False, False]


def test_specs_without_end_are_not_remembered_without_end():
    sent = SpecsSent()

    assert all(sent.is_new(number) for number in range(3 * SPECS_REMEMBERED))

    assert len(sent._known) <= SPECS_REMEMBERED
    assert sent.is_new(0)
