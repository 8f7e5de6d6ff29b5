"""Coroutine functions as tasks: each call gets an event loop of its own in the slot's main thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any


def runnable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or for a coroutine function one that runs it to its end."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  an instance may be callable so
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        return functools.partial(_run, function)
    return function


def _run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    asyncio = import_module("asyncio")  # 30 ms that only slots with coroutines spend
    return asyncio.run(function(*args, **kwargs))
