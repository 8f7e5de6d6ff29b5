"""A stand-in for a slot: a process that loads functions and payloads and gives back the results' payloads.

`call_in_slot` is the other end; what passes between them is pickled pairs of bytes.
"""

import pickle
import subprocess
import sys

from taskmesh.serialize import code, payload
from taskmesh.serialize.exceptions import dumps_exception, load_exception
from taskmesh.serialize.namespaces import Scope, enter
from taskmesh.shm.blob import Blob


def call_in_slot(function, *args, check=None, **kwargs):
    """Run function(*args, **kwargs) in another process; `check` is an expression it must find true first."""
    return call_all_in_slot([(function, args, kwargs)], check)[0]


def call_all_in_slot(calls, check=None):
    """Run several (function, args, kwargs) in one other process; the first exception is raised."""
    return run_in_slot([order(function, *args, **kwargs) for function, args, kwargs in calls], check)


def order(function, *args, **kwargs):
    """Return a call as it travels now."""
    return code.dump_function(function), _flat(payload.dumps_call(args, kwargs, where="test"))


def run_in_slot(orders, check=None):
    """Run orders one after the other in one other process, as a slot's runner does."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.serialize.echo_slot"],
        input=pickle.dumps((orders, check)),
        stdout=subprocess.PIPE,
        timeout=50,
        check=True,
    )
    return [_outcome(*answer) for answer in pickle.loads(run.stdout)]


def _outcome(kind, *fields):
    if kind == "result":
        return payload.loads(fields[0])
    raise load_exception(*fields, task="test", worker="slot", attempt=1)


def _flat(data):
    assert not isinstance(data, Blob), "small values only"
    return data


_loaded = {}


def main():
    orders, check = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps([_answer(*order, check) for order in orders]))


def _answer(function_bytes, call, check):
    try:
        if function_bytes in _loaded:
            function, scope = _loaded[function_bytes]
            enter(scope)
        else:
            scope = Scope()
            enter(scope)
            function, _ = _loaded[function_bytes] = code.load_function(function_bytes), scope
        args, kwargs = payload.loads_call(call)
        if check is not None and not eval(check, {"sys": sys}):  # noqa: S307 -- the test's own words
            raise AssertionError(f"not in the slot: {check}")
        return "result", _flat(payload.dumps(function(*args, **kwargs)))
    except BaseException as error:  # noqa: BLE001
        return "error", *dumps_exception(error)


if __name__ == "__main__":
    main()
