"""A stand-in for a slot: a process that loads a function and a payload and writes back the result's payload.

Read from stdin and written to stdout as a pickled pair of bytes; `call_in_slot` is the other end.
"""

import pickle
import subprocess
import sys

from taskmesh.errors import TaskMeshError
from taskmesh.wire import code, payload
from taskmesh.wire.blob import Blob


def call_in_slot(function, *args, check=None, **kwargs):
    """Run function(*args, **kwargs) in another process; `check` is an expression it must find true first."""
    order = (code.dump_function(function), _flat(payload.dumps_call(args, kwargs, where="test")), check)
    run = subprocess.run(
        [sys.executable, "-m", "tests.wire.echo_slot"],
        input=pickle.dumps(order),
        stdout=subprocess.PIPE,
        timeout=50,
        check=True,
    )
    kind, *fields = pickle.loads(run.stdout)
    if kind == "result":
        return payload.loads(fields[0])
    raise payload.load_exception(*fields, task="test", worker="slot", attempt=1)


def _flat(data):
    assert not isinstance(data, Blob), "small values only"
    return data


def main():
    function_bytes, call, check = pickle.load(sys.stdin.buffer)
    answer = _answer(function_bytes, call, check)
    sys.stdout.buffer.write(pickle.dumps(answer))


def _answer(function_bytes, call, check):
    try:
        function = code.load_function(function_bytes)
        args, kwargs = payload.loads(call)
        if check is not None and not eval(check, {"args": args, "function": function, "sys": sys}):  # noqa: S307
            raise AssertionError(f"not in the slot: {check}")
        return "result", _flat(payload.dumps(function(*args, **kwargs)))
    except TaskMeshError as error:
        return "error", *payload.dumps_exception(error)
    except BaseException as error:  # noqa: BLE001
        return "error", *payload.dumps_exception(error)


if __name__ == "__main__":
    main()
