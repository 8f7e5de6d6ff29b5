"""Coroutine functions as tasks: they share one event loop, in the main thread, for the process's life.

So what a function keeps from call to call, such as a client with its connections, stays usable. What a task
has started and not awaited goes on with the slot's next coroutine.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any

from taskmesh.serialize.code import is_coroutine_function

if TYPE_CHECKING:
    import asyncio

_loops: list[asyncio.AbstractEventLoop] = []
_elsewhere: list[Callable[[Coroutine[Any, Any, Any]], Any]] = []


def run_by(run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
    """Have coroutines run by this function, which waits for their end: slots share the process."""
    _elsewhere[:] = [run]


def runnable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or for a coroutine function one that runs it to its end."""
    return functools.partial(_run, function) if is_coroutine_function(function) else function


def _run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if _elsewhere:
        return _elsewhere[0](function(*args, **kwargs))
    asyncio = import_module("asyncio")  # 30 ms that only slots with coroutines spend
    if threading.current_thread() is not threading.main_thread():  # a nested task that runs inside its parent
        return asyncio.run(function(*args, **kwargs))
    if not _loops or _loops[-1].is_closed():  # a task may have closed it
        _loops[:] = [asyncio.new_event_loop()]
    [loop] = _loops
    asyncio.set_event_loop(loop)
    task = loop.create_task(function(*args, **kwargs))
    try:
        return loop.run_until_complete(task)
    finally:
        # A time limit or an interrupt may have struck in the loop's own code.
        if not task.done() and not loop.is_closed():
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
