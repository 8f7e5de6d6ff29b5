"""Addresses of a hub: the gateway's, the others that follow from it, and what clients and pools may dial."""

from __future__ import annotations

import errno
import os
import re
import socket
import tempfile
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from taskmesh.errors import ConfigError, InsecureBind
from taskmesh.security.keys import Credentials
from taskmesh.sockets import CurveClient, EndpointError, KeyPair, SocketOptions
from taskmesh.sockets.endpoint import obstacle
from taskmesh.system.loopback import is_loopback

IPC = "ipc://"
LANE_SUFFIX = ".lane-"
LONGEST_PATH = 90
"""Bytes of an ipc gateway's path: the kernel allows 107, and a lane's suffix takes up to 16 of them."""

_HOST = re.compile(r"\*|[0-9a-z:][\w.:%-]*", re.ASCII | re.IGNORECASE)
"""Hosts that libzmq can dial."""

HOW_TO_USE_KEYS = """\
only loopback (127.0.0.1, ::1, localhost) and ipc:// may be used without keys, \
because whoever reaches a hub can run code on its pools. Make keys:
  taskmesh keys new hub --keys HUB
  taskmesh keys new worker --keys POOL --hub HUB/hub.public
  taskmesh keys new client operator --keys MINE --hub HUB/hub.public --mesh POOL/mesh.secret
  taskmesh keys authorize worker NAME POOL/worker.public --keys HUB
  taskmesh keys authorize client NAME MINE/client.public --keys HUB
and start each program with its directory: --keys DIR, TASKMESH_KEYS=DIR or Mesh(..., keys=DIR). \
Without keys: tcp://127.0.0.1:5550, and an SSH tunnel to reach it from another machine"""
"""The second half of an error text; docs/how-to/keys.md says more."""


ONE_HUB = (
    "a mesh has one hub. It survives a restart with a journal; work that is too much for one hub is shared "
    "among several meshes, and MeshSpark takes a list of them"
)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Gateway, collector and control of one hub.

    Over tcp collector and control are on the next two ports; over ipc their paths have suffixes.
    """

    gateway: str
    collector: str
    control: str

    @classmethod
    def of(cls, gateway: str) -> Endpoints:
        """Return the endpoints that belong to a gateway's address.

        Raises:
            ConfigError: it is no tcp or ipc endpoint, or a list of them; the message shows an example of one.
        """
        if "," in gateway and ("://" in gateway.partition(",")[2] or not gateway.startswith(IPC)):
            raise ConfigError(f"{gateway!r} is not one address: {ONE_HUB}")
        if gateway.startswith(IPC) and len(gateway) > len(IPC):
            if "\0" in gateway or any("\ud800" <= character <= "\udfff" for character in gateway):
                raise ConfigError(f"{gateway!r}: a socket's path must be text; choose another one")
            if len(gateway.encode()) - len(IPC) > LONGEST_PATH:
                raise ConfigError(
                    f"{gateway}: a socket's path may have {LONGEST_PATH} bytes here; choose a shorter one"
                )
            return cls(gateway, gateway + ".collector", gateway + ".control")
        host, port = tcp_parts(gateway)
        if port > 65533:
            raise ConfigError(
                f"{gateway}: collector and control need the next two ports; choose one up to 65533"
            )
        return cls(gateway, f"tcp://{host}:{port + 1}", f"tcp://{host}:{port + 2}")

    def lane(self, port_or_path: str) -> str:
        """Return the endpoint of a lane that WELCOME names: a port on the hub's host, or an ipc endpoint."""
        if port_or_path.startswith(IPC):
            return port_or_path
        host, _ = tcp_parts(self.gateway)
        return f"tcp://{host}:{port_or_path}"


@dataclass(frozen=True, slots=True)
class Target:
    """An address to dial, with the key that the hub there is expected to have.

    Attributes:
        hub: the hub's endpoints.
        hub_key: its public key; None where no keys are in use.
    """

    hub: Endpoints
    hub_key: bytes | None = None

    def options(self, options: SocketOptions, pair: KeyPair | None) -> SocketOptions:
        """Return socket options with the hub's key and our own pair, if keys are in use."""
        if self.hub_key is None or pair is None:
            return options
        return replace(options, curve=CurveClient(pair.public, pair.secret, self.hub_key))


def targets(address: str, credentials: Credentials | None) -> list[Target]:
    """Return an address with every key that its hub may have, in the order in which they are tried.

    Raises:
        ConfigError: it is no endpoint.
    """
    hub = Endpoints.of(address)
    return [Target(hub)] if credentials is None else [Target(hub, key) for key in credentials.hub_keys]


def private_folder() -> tuple[str, Endpoints]:
    """Make a folder that only this user can enter; return it with the endpoints of a hub in it.

    Raises:
        ConfigError: no folder can be made where temporary files go, or its path is too long for sockets.
    """
    try:
        folder = tempfile.mkdtemp(prefix="taskmesh-")
    except OSError as error:
        raise ConfigError(f"no folder for sockets: {error}: set TMPDIR to one that can be written") from None
    try:
        return folder, Endpoints.of(f"{IPC}{folder}/hub")
    except ConfigError as error:
        os.rmdir(folder)
        raise ConfigError(f"{error}: set TMPDIR to one") from None


def tcp_parts(endpoint: str) -> tuple[str, int]:
    """Return host and port of a tcp endpoint; IPv6 hosts keep their brackets.

    Raises:
        ConfigError: it is no tcp endpoint, or has parts that none has.
    """
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.scheme != "tcp" or not _HOST.fullmatch(host):
        hint = "write tcp://HOST:PORT or ipc://PATH, for example tcp://127.0.0.1:5550"
        raise ConfigError(f"{endpoint!r} is not an address: {hint}")
    if ":" in host:
        host = f"[{host}]"
    # libzmq would not understand the rest of a URL: a path, a user, a scheme in capitals.
    if endpoint.removeprefix("tcp://").lower() != f"{host}:{port}".lower():
        raise ConfigError(f"{endpoint!r} is not an address: write tcp://{host}:{port}")
    return host, port


def refuse_taken(endpoint: str) -> None:
    """Refuse an ipc endpoint whose path is taken: libzmq would remove the file without a word.

    A socket file on which nobody listens is no obstacle: a killed hub leaves its own behind.

    Raises:
        EndpointError: somebody listens there, or the path is no socket.
    """
    if not endpoint.startswith(IPC):
        return
    path = endpoint.removeprefix(IPC)
    address = "\0" + path[1:] if path.startswith("@") else path
    trouble = obstacle(endpoint) or _listener_at(address)
    if trouble:
        raise EndpointError(f"cannot bind {endpoint!r}: {trouble}", errno.EADDRINUSE)


def _listener_at(address: str) -> str:
    """Return a sentence about who listens on a socket file and what to do; "" if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # where the queue of links is full, connecting would wait
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return ""
        except BlockingIOError:
            pass
        except OSError as error:
            return f"a socket that is no hub's is there ({error.strerror}); choose another path"
    return "somebody listens there; choose another"


def is_local(endpoint: str) -> bool:
    """Return True if an endpoint is ipc or this machine's loopback."""
    if endpoint.startswith(IPC):
        return True
    return is_loopback(tcp_parts(endpoint)[0].strip("[]"))


def check_dialled(endpoint: str, *, keys: bool = False) -> None:
    """Refuse an address that cannot be dialled.

    Raises:
        ConfigError: it is no endpoint, or one that only a hub can use: to choose a port, or to listen on
            every interface.
        InsecureBind: see `check_local`.
    """
    gateway = Endpoints.of(endpoint).gateway
    check_local(gateway, "dialling", keys=keys)
    if gateway.startswith(IPC):
        return
    host, port = tcp_parts(gateway)
    if not port:
        raise ConfigError(
            f"{endpoint} cannot be dialled: with port 0 a hub chooses one when it starts; "
            "use the address that its ready line names"
        )
    if host == "*":
        raise ConfigError(f"{endpoint} cannot be dialled: * is where a hub listens; name its machine")


def check_local(endpoint: str, what: str, *, keys: bool = False) -> None:
    """Refuse all but loopback and ipc unless keys are in use: a client of a hub can run code on its pools.

    Args:
        what: the first word of the error text: "binding" or "dialling".

    Raises:
        InsecureBind: the host is not this machine's loopback; the message says how keys are made.
    """
    if not keys and not is_local(endpoint):
        raise InsecureBind(f"{what} {endpoint}: {HOW_TO_USE_KEYS}")
