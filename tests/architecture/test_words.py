"""The words of the house: names of classes, modules that are a concept, docstrings and error texts.

The lists say what is still otherwise. They may only become shorter.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.architecture.source import EVERYTHING, ROOT, line_count, nodes, python_files, tree

# Classes whose name stands twice, with the reason.
SAME_NAME: dict[str, str] = {"Progress": "of one task on its way to the client, and of many tasks for people"}
# Modules of fewer than 60 lines that are a concept of their own, with the reason.
SHORT: dict[str, str] = {
    "taskmesh/pool/machine/values.py": "the outcomes that tasks of a pool need, and nothing else",
    "taskmesh/core/ids.py": "identities, which every module of the core and many others name",
    "taskmesh/core/state_machine.py": "the base of lanes and slots, and of what invariants raise",
    "taskmesh/core/specs.py": "numbers and eviction of specs, for whoever keeps some",
    "taskmesh/hub/machine/books/failures.py": "kinds of failures, which the simulation judges by, too",
    "taskmesh/hub/machine/promises.py": "what ends a promise; all else is that of any task with a key",
    "taskmesh/hub/machine/views/quantities.py": "quantities in words, for views, log and command line",
    "taskmesh/pool/machine/settings.py": "each of the three rooms has one",
    "taskmesh/client/port/settings.py": "each of the three rooms has one",
    "taskmesh/cli/configuration.py": "the settings as a command shows them, with their origins",
    "taskmesh/http/metrics.py": "a metric, for hub and pool, and its text",
    "taskmesh/pool/slots/coroutines.py": "one rule, for slots, nested calls and Spark's steps",
    "taskmesh/pool/slots/tickets.py": "the pipe that decides whether a task starts",
    "taskmesh/security/peer_errors.py": "one rule of the log, shared by hub and ZAP handler",
    "taskmesh/serialize/error_payload.py": "supervisors import it, and nothing that pickles",
    "taskmesh/serialize/scalars.py": "the one encoding that needs no pickle",
    "taskmesh/sockets/libzmq.py": "facts about libzmq",
    "taskmesh/spark/daemon.py": "the module that Spark starts",
    "taskmesh/spark/jobs/spark_task.py": "the one place that asks Spark's task context",
    "taskmesh/spark/steps/errors.py": "the errors of a package",
    "taskmesh/spark/steps/ipc.py": "the format of Arrow",
    "taskmesh/system/clock.py": "the one clock of all deadlines",
    "taskmesh/integrations/sentry.py": "middleware for one library",
    "taskmesh/integrations/structlog.py": "middleware for one library",
    "taskmesh/messages/limit_rules.py": "limits in words, for code and for operators",
    "taskmesh/system/loopback.py": "one rule, for endpoints and the side port",
}
SHORTEST = 60
# How many docstrings of a folder still begin with a clause instead of a sentence or a noun.
CLAUSES: dict[str, int] = {
    "benchmarks": 1,
    "tests": 1,
    "tests/architecture": 3,
    "tests/benchmarks": 1,
    "tests/chaos": 12,
    "tests/cli": 4,
    "tests/client": 7,
    "tests/client/machine": 2,
    "tests/client/port": 1,
    "tests/conformance": 12,
    "tests/containers": 3,
    "tests/core": 5,
    "tests/faults": 10,
    "tests/fuzz": 2,
    "tests/harness": 8,
    "tests/helm": 7,
    "tests/hosting": 8,
    "tests/hosting/abuse": 5,
    "tests/hub/journal": 1,
    "tests/hub/machine": 12,
    "tests/kube": 9,
    "tests/link": 1,
    "tests/messages": 3,
    "tests/pool": 1,
    "tests/pool/machine": 7,
    "tests/pool/slots": 11,
    "tests/serialize": 5,
    "tests/simulation": 39,
    "tests/sockets": 1,
    "tests/system": 3,
    "tests/typing": 2,
}
# Modules with error texts that say "Cure:" in place of a sentence.
CURES: frozenset[str] = frozenset()
CLAUSE = re.compile(r"(What|Who|Whom|Whose|Whether|How|Which|Where|When|Why|Whatever|Whoever)\b")
# As a function's docstring does not begin: it is imperative ("Return"). Nouns may end in an s.
THIRD_PERSON = re.compile(
    r"(Acknowledg|Add|Answer|Ask|Bind|Call|Cancel|Clos|Connect|Cut|Drop|End|Enter|Fir|Forget|Giv|Hand|Has|Keep|"
    r"Leav|Load|Log|Mak|Mov|Not|Open|Pass|Publish|Push|Put|Queu|Rais|Read|Receiv|Refus|Remov|Repeat|Replac|"
    r"Report|Return|Run|Say|Send|Start|Stop|Submit|Tak|Tell|Wait|Writ|Yield)e?s\b"
)


def test_a_class_is_defined_once():
    places = defaultdict(set)
    for path in python_files("taskmesh"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(str(path))

    assert {name for name, found in places.items() if len(found) > 1} <= set(SAME_NAME)


def test_a_short_module_is_a_concept_of_its_own():
    short = {
        str(path)
        for path in python_files("taskmesh")
        if not path.stem.startswith("__") and line_count(path) < SHORTEST
    }

    assert short <= set(SHORT)


def test_docstrings_of_functions_are_imperative():
    begin = [
        f"{path}:{node.lineno} {text}"
        for path in python_files("taskmesh")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list
        if THIRD_PERSON.match(text := ast.get_docstring(node) or "")
    ]

    assert begin == []


def test_docstrings_begin_with_a_sentence_or_a_noun():
    counts: dict[str, int] = defaultdict(int)
    for path in python_files(*EVERYTHING):
        counts[str(path.parent)] += sum(bool(CLAUSE.match(text)) for text in _docstrings(path))

    assert {room: count for room, count in counts.items() if count > CLAUSES.get(room, 0)} == {}


def test_docstrings_of_constants_do_so_too():
    values = [
        node.value for path in python_files("taskmesh") for node in nodes(path) if isinstance(node, ast.Expr)
    ]
    texts = [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]

    assert [text for text in texts if CLAUSE.match(text)] == []


def _docstrings(path: Path) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [ast.get_docstring(node) or "" for node in nodes(path) if isinstance(node, kinds)]


def test_no_error_text_says_cure():
    found = {
        str(path) for path in python_files("taskmesh") if "Cure:" in (ROOT / path).read_text(encoding="utf-8")
    }

    assert found <= CURES
