"""A mesh in the driver, and the address that is told to those who dial it: executors, and workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from taskmesh.errors import ConfigError, InsecureBind
from taskmesh.link.endpoints import IPC, tcp_parts
from taskmesh.mesh import Mesh

EVERY_INTERFACE: Final = frozenset({"*", "0.0.0.0", "[::]"})  # noqa: S104  hosts to listen at, not to dial


@contextlib.contextmanager
def driver_mesh(spark: Any, bind: str, advertise: str, hub_keys: str) -> Iterator[str]:
    """Hold a mesh that listens, for the time of a `with` block; yield the address that others dial.

    Args:
        spark: the session.
        bind: the address at which the mesh listens.
        advertise: the host that others dial; empty if they dial that of `bind`, or the driver's.
        hub_keys: a directory with the keys of a hub; empty for that of the environment, or none.

    Raises:
        ConfigError: see `host_to_dial`.
        InsecureBind: `bind` is beyond loopback, and there are no keys.
    """
    host = host_to_dial(spark, bind, advertise)
    keys: dict[str, Any] = {"keys": hub_keys} if hub_keys else {}
    mesh = Mesh(bind=bind, workers=0, **keys)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(mesh)
        except InsecureBind as error:
            raise InsecureBind(f"{error}. For serve(), the hub's directory is hub_keys=DIR") from None
        yield f"tcp://{host}:{tcp_parts(mesh.address)[1]}" if host else mesh.address


def host_to_dial(spark: Any, bind: str, advertise: str) -> str:
    """Return the host by which others reach what listens at `bind`; empty if `bind` names it itself.

    Args:
        spark: the session.
        bind: the address at which the mesh will listen.
        advertise: the host that the user has named; empty for none.

    Raises:
        ConfigError: an address or host cannot be used, or nothing says on which host the driver runs.
    """
    if bind.startswith(IPC):
        if advertise:
            raise ConfigError(f"advertise={advertise!r} names a host, and {bind} has none")
        return ""
    host, _ = tcp_parts(bind)
    if advertise:
        try:
            return tcp_parts(f"tcp://{advertise}:0")[0]
        except ConfigError:
            raise ConfigError(
                f"advertise= is the name or address of the driver's host, without a port, not {advertise!r}"
            ) from None
    if host not in EVERY_INTERFACE:
        return ""
    connect = type(spark).__module__.startswith("pyspark.sql.connect")
    found = "" if connect else spark.conf.get("spark.driver.host", "")
    if not found or found in EVERY_INTERFACE:
        why = "that of Spark Connect's server" if connect else "no such name"
        raise ConfigError(
            f"{bind} is every interface of this host, and executors need a name to dial, but "
            f"spark.driver.host is {why}: write advertise='HOST'"
        )
    return str(found)
