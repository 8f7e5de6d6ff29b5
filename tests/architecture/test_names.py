"""Names and habits: files are nouns of the domain, tests do not sleep, imports stand at the top."""

import ast
from pathlib import Path

from tests.architecture.source import EVERYTHING, PACKAGES, ROOT, calls, imports, python_files

SHAPELESS = frozenset(
    {
        "util",
        "utils",
        "helper",
        "helpers",
        "manager",
        "managers",
        "misc",
        "common",
        "base",
        "handler",
        "handlers",
    }
)

# Where an import inside a function is right, with the reason.
LATE_IMPORTS = {
    "taskmesh/__init__.py": "the public names are lazy: `import taskmesh` must not load zmq in a slot",
    "taskmesh/spark/__init__.py": "lazy too: pools import the steps, and have no PySpark",
    "taskmesh/cli/": "`taskmesh --help` must not load the mesh",
    "taskmesh/spark/daemon.py": "a worker may load nothing before it is forked",
    "taskmesh/spark/evaluation/evaluation.py": "a pool without PySpark is told what it lacks",
    "taskmesh/spark/steps/columns.py": "pools need numpy only where arrays or scalars of it come",
    "taskmesh/serialize/values.py": "cloudpickle is slow to load and most processes never need it",
    "taskmesh/hosting/transport.py": "zmq is loaded only where a mesh needs sockets",
    "taskmesh/hub/private_gateway.py": "an embedded hub needs zmq only when a task submits tasks",
    "taskmesh/testing/": "pytest loads it in programs whose tests have no tasks",
    "taskmesh/schedule.py": "most programs have no cron lines, and slots do not check theirs",
    "taskmesh/context.py": "a slot that runs no schedule's tasks needs no dates",
    "taskmesh/mesh.py": "inspect is slow to load and most programs have no schedules",
    "taskmesh/function.py": "a slot loads the mesh only when a task submits tasks",
    "taskmesh/http/side_port.py": "http.server is slow to load and most programs need no side port",
    "taskmesh/hosting/child_hub.py": "the parent needs no hub, and its child no more of the client than this",
    "taskmesh/hosting/embedded.py": "zmq and sqlite3 are slow to load: few meshes listen, or have a journal",
    "taskmesh/hosting/local_pool.py": "zmq is needed only where a task submits tasks",
    "taskmesh/hub/journal/journal.py": "redis is an extra, and most hubs have no journal there",
    "taskmesh/client/nested_client.py": "zmq is loaded only where a task submits tasks",
    "taskmesh/system/process.py": "modules that gevent may have replaced",
    "taskmesh/client/client.py": "keys are slow to load and most programs have none",
    "taskmesh/client/progress_display.py": "rich is slow to load and few programs draw bars",
    "taskmesh/client/options.py": "a slot that imports task functions needs no futures",
    "taskmesh/shm/files.py": "tempfile is slow to load and only a system without memfd uses it",
    "taskmesh/pool/slots/slot.py": "multiprocessing is slow to load and most programs have none",
    "taskmesh/pool/slots/coroutines.py": "asyncio is slow to load and most slots never run a coroutine",
    "taskmesh/pool/slots/threads/runner.py": "asyncio is slow to load and most slots are no threads",
    "taskmesh/pool/slots/threads/threads.py": "asyncio is slow to load and most slots are no threads",
}


def test_no_file_has_a_shapeless_name():
    shapeless = [
        str(path)
        for path in python_files(*EVERYTHING)
        if SHAPELESS & set(path.stem.removeprefix("test_").split("_"))
    ]

    assert shapeless == []


def test_no_test_sleeps():
    sleeps = [
        f"{path}:{call.lineno}"
        for path in python_files("tests")
        for call in calls(path, "sleep")
        if not _is_mere_yield(call)
    ]

    assert sleeps == [], (
        "wait on a condition: tests.harness.waiting.wait_until, an Event, a poll with a timeout"
    )


def _is_mere_yield(call: ast.Call) -> bool:
    """Recognise asyncio.sleep(0): it gives way, it does not wait."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def test_imports_stand_at_the_top():
    late = [
        f"{path}:{found.line} {found.module}"
        for path in python_files(*PACKAGES)
        if not str(path).startswith(tuple(LATE_IMPORTS))
        for found in imports(path)
        if found.late
    ]

    assert late == []


def test_every_package_has_its_folder_of_tests():
    packages = {path.parent.name for path in (ROOT / "taskmesh").glob("*/__init__.py")}

    untested = sorted(
        package for package in packages if not list(Path(ROOT, "tests", package).rglob("test_*.py"))
    )

    assert packages
    assert untested == []
