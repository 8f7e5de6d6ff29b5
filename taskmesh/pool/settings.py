"""The pool machine's settings, made of the user's, and the rules for names of pools, queues and tags."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
from collections.abc import Iterable

from taskmesh.config import Config
from taskmesh.errors import ConfigError
from taskmesh.messages.runs import LONGEST_NAME as LONGEST_QUEUE
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.slots.fork_server_client import NO_OPTIONS, SlotOptions
from taskmesh.system.process import PYTHON, cloudpickle_version

LONGEST_NAME = 200
"""Bytes of a pool's name."""


def pool_settings(
    config: Config, name: str = "", *, wired: bool = False, options: SlotOptions = NO_OPTIONS
) -> PoolSettings:
    """Return the pool machine's settings, with a new instance number.

    Args:
        config: the user's settings.
        name: the pool's name; by default one of host, process and instance.
        wired: True if its hub is another process.
        options: of the slots.

    Raises:
        ConfigError: its name, or one of a queue or tag, cannot be used, its slots cannot run as another user,
            or an option is for slots with processes of their own.
    """
    check_name(name)
    if config.pool.shared and (options.max_tasks or options.gpus):
        option = "--max-tasks-per-child" if options.max_tasks else "--gpus"
        raise ConfigError(
            f"{option} is for --mode process: with --mode {config.pool.mode} slots share processes"
        )
    check_names((*config.pool.queues, *config.pool.tags))
    check_slot_user(config.pool.slot_user, wired=wired)
    host = socket.gethostname()
    instance = secrets.randbits(63)
    return PoolSettings(
        pool=name or f"{host}-{os.getpid()}-{instance & 0xFFFF:04x}",
        instance=instance,
        slots=config.pool.slots,
        queues=config.pool.queues,
        tags=(*config.pool.tags, f"mode:{config.pool.mode}") if config.pool.shared else config.pool.tags,
        shared=config.pool.shared,
        python=PYTHON,
        host=host,
        pid=os.getpid(),
        beat=config.hub.beat,
        lease=config.hub.lease,
        hello=min(0.2 if wired else 1.0, config.hub.beat),
        grace=config.pool.grace,
        max_tasks=options.max_tasks,
        stop_first=bool(options.gpus),
        cloudpickle=cloudpickle_version() if wired else "",
    )


def check_slot_user(name: str, *, wired: bool = True) -> None:
    """Refuse a user as whom this program cannot run slots.

    Raises:
        ConfigError: there is no such user, this program is not root's, or it is the hub as well.
    """
    if not name:
        return
    if not wired:
        raise ConfigError(
            "pool.slot_user is for `taskmesh worker`: slots beside their hub reach it as its own user"
        )
    if os.geteuid() != 0:
        raise ConfigError(
            "pool.slot_user: only root can run slots as another user. Tasks can read what this worker's user "
            "can, the worker's keys too: start it as root, or leave the option out"
        )
    try:
        pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"pool.slot_user: this machine has no user {name!r}") from None


def check_names(names: Iterable[str]) -> None:
    """Refuse names of queues and tags that no hub would take.

    Raises:
        ConfigError: one is too long, or cannot be printed.
    """
    for name in names:
        if not 0 < len(name) <= LONGEST_QUEUE or not name.isprintable():
            raise ConfigError(
                f"{name!r:.100} is no name of a queue or tag: take up to {LONGEST_QUEUE} printable characters"
            )


def check_name(name: str) -> None:
    """Refuse a pool's name that could be taken for other words or cannot be printed.

    Raises:
        ConfigError: the name cannot be used.
    """
    usable = name.isprintable() and " " not in name and len(name.encode()) <= LONGEST_NAME
    if name == "all" or not usable:
        raise ConfigError(
            f"{name!r} cannot be a pool's name: take up to {LONGEST_NAME} printable characters without "
            "spaces, and not `all`, which means every pool"
        )
