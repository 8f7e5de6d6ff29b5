"""Specs travel once each, and are remembered up to a bound."""

from taskmesh.client.runs import SPECS_REMEMBERED, SpecsSent


def test_a_spec_is_new_once():
    sent = SpecsSent()

    assert [sent.is_new(number) for number in (7, 8, 7, 8)] == [True, True, False, False]


def test_specs_without_end_are_not_remembered_without_end():
    sent = SpecsSent()

    assert all(sent.is_new(number) for number in range(3 * SPECS_REMEMBERED))

    assert len(sent._known) <= SPECS_REMEMBERED
    assert sent.is_new(0)
