"""Tests wait for conditions, never for time to pass; the exceptions are few, and each has its reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import ROOT, python_files, tree

WAITS = re.compile(r"\b(?:wait|select|u?sleep|watch_for)\(")

# Functions and classes that let time pass, by the reason: what they show is about a length of time.
EXCEPTIONS = {
    "the one place that waits between two looks": {"tests/harness/waiting.py::wait_until"},
    "a fault lasts for a part of the lease, in which nobody may give up, or for more than the lease": {
        "tests/faults/test_hosts.py::test_F23_the_clients_plug_is_pulled_and_put_back",
        "tests/faults/test_hosts.py::test_F23_the_pools_plug_is_pulled_and_put_back",
        "tests/faults/test_hub.py::test_F11_hub_killed_and_restarted",
        "tests/faults/test_hub.py::test_F15_hub_frozen_for_two_leases",
        "tests/faults/test_hub.py::test_F46_starved_of_processor_time",
        "tests/faults/test_pools.py::test_F03_whole_pool_killed_and_restarted",
        "tests/faults/test_pools.py::test_F04_all_pools_killed_and_none_for_two_leases",
        "tests/faults/test_pools.py::test_F07_supervisor_frozen_for_half_a_lease",
        "tests/faults/test_pools.py::test_F08_pool_frozen_for_two_leases",
        "tests/faults/test_slots.py::test_F10_task_holds_the_gil_while_its_children_wait",
        "tests/faults/test_weather.py::test_F23_flapping_link",
    },
    "processor time or memory is measured over so many seconds": {
        "tests/faults/test_clients.py::test_F19_client_too_slow_for_its_results",
        "tests/faults/test_shortage.py::test_F40_no_process_for_a_slot",
        "tests/faults/test_shortage.py::test_a_hub_stays_within_its_memory_whatever_its_clients_submit",
    },
    "a client that works at random intervals": {"tests/chaos/client_program.py::Customer"},
    "work whose length matters: it is measured, limited, or has to go on during a strike": {
        "tests/client/test_map.py::test_map_of_items_that_take_time_spreads_over_small_chunks",
        "tests/containers/boxed.py::nap",
        "tests/faults/workload.py::_wait",
        "tests/faults/workload.py::grow",
        "tests/faults/workload.py::hold_gil",
        "tests/kube/farm.py::square",
        "tests/hosting/orphans.py::leave_thread",
        "tests/hosting/test_nested.py::note",
        "tests/hosting/workload.py::span",
        "tests/pool/early_gpus.py::seen",
        "tests/pool/on_gpu.py::look",
        "tests/spark/driven.py::reduced",
        "tests/spark/driven.py::straggling",
        "tests/spark/jobs.py::noting",
        "tests/spark/test_defaults.py::test_a_call_that_costs_60_ms_gets_sparks_whole_batches",
        "tests/spark/test_defaults.py::test_row_22_a_limit_computes_no_more_than_a_window",
        "tests/spark/test_defaults.py::test_row_20_equal_rows_make_equal_pieces_where_results_are_shared",
        "tests/spark/test_flow.py::test_row_24_slow_pools_hold_up_what_is_sent_to_them",
        "tests/spark/test_flow.py::test_row_24_slow_sinks_hold_up_what_is_computed_for_them",
        "tests/spark/test_forms.py::test_row_04_items_that_take_long_travel_one_by_one",
        "tests/spark/test_offload.py::_counting",
        "tests/spark/test_offload.py::_plus_one_slowly",
        "tests/spark/test_offload.py::test_results_come_while_rows_still_go",
        "tests/spark/test_losses.py::test_row_16_work_goes_on_as_soon_as_the_hub_is_back",
        "tests/spark/test_sharing.py::_timed",
        "tests/spark/test_sharing.py::test_row_05_a_large_partition_keeps_both_pools_busy",
    },
    "a deadline: the limit strikes long before": {
        "tests/pool/slots/test_soft_timeout.py::test_a_limit_that_is_swallowed_strikes_each_second_until_the_function_ends",
        "tests/pool/slots/test_soft_timeout.py::test_a_limit_that_strikes_in_a_finalizer_strikes_again",
    },
}


def test_no_test_waits_for_time_to_pass():
    excused = {name for names in EXCEPTIONS.values() for name in names}
    found = {f"{path}::{name}" for path in python_files("tests") for name in timed_waits(path)}

    assert found - excused == set(), "wait for a condition with a deadline (tests.harness.waiting.wait_until)"
    assert excused - found == set(), "these exceptions are not needed any more"


def timed_waits(path: Path) -> Iterator[str]:
    """Yield the outermost function or class of each call that only lets time pass."""
    if not WAITS.search((ROOT / path).read_text(encoding="utf-8")):
        return  # walking through all trees would take seconds
    module = tree(path)
    unset = events_nobody_sets(module)
    for owner in module.body:
        name = getattr(owner, "name", "")
        for node in ast.walk(owner):
            if isinstance(node, ast.Call) and lets_time_pass(node, unset):
                yield name


def events_nobody_sets(module: ast.Module) -> set[str]:
    """Return the names of events that this module makes and never sets."""
    made = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Assign):
            targets = node.targets
            if isinstance(targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(targets[0].elts, node.value.elts, strict=True))
            else:
                pairs = [(target, node.value) for target in targets]
            made |= {ast.unparse(target) for target, value in pairs if is_new_event(value)}
    text = ast.unparse(module) if made else ""
    return {name for name in made if f"{name}.set" not in text}


def is_new_event(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "Event"


def last_name(node: ast.expr) -> str:
    """Return the name of a name, the attribute of an attribute, "" for all else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def lets_time_pass(call: ast.Call, unset: set[str]) -> bool:
    """Return True for `Event().wait(n)`, `select([], [], [], n)`, `sleep(n)` and `client.watch_for(n)`."""
    name = last_name(call.func)
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name == "wait" and arguments and isinstance(call.func, ast.Attribute):
        return is_new_event(call.func.value) or ast.unparse(call.func.value) in unset
    if name == "select":
        return len(arguments) == 4 and all(
            isinstance(each, ast.List | ast.Tuple) and not each.elts for each in arguments[:3]
        )
    if name in {"sleep", "usleep"}:
        return bool(arguments) and ast.unparse(arguments[0]) != "0"
    return name == "watch_for"


def test_waits_for_time_are_recognised():
    waits = [
        "threading.Event().wait(1)",
        "threading.Event().wait(timeout=seconds)",
        "select.select([], [], [], 1)",
        "select((), (), (), 1)",
        "time.sleep(0.1)",
        "client.watch_for(2)",
        "pause.wait(2)",
    ]
    others = ["threading.Event().wait()", "ready.wait(5)", "asyncio.sleep(0)", "select([one], [], [], 1)"]

    def found(text: str) -> bool:
        call = ast.parse(text, mode="eval").body
        return isinstance(call, ast.Call) and lets_time_pass(call, {"pause"})

    assert [text for text in waits if not found(text)] == []
    assert [text for text in others if found(text)] == []


def test_an_event_that_nobody_sets_is_a_clock():
    module = ast.parse("pause, ready = Event(), threading.Event()\nready.set()")

    assert events_nobody_sets(module) == {"pause"}
