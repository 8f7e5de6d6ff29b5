"""Where a hub listens: the gateway's address, and the others that follow from it."""

from __future__ import annotations

import errno
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from taskmesh.errors import ConfigError, InsecureBind
from taskmesh.sockets import EndpointError
from taskmesh.sockets.socket_file import obstacle
from taskmesh.system.loopback import is_loopback

IPC = "ipc://"
LANE_SUFFIX = ".lane-"
LONGEST_PATH = 90
"""Bytes of an ipc gateway's path: the kernel allows 107, and a lane's suffix takes up to 16 of them."""

_HOST = re.compile(r"\*|[0-9a-z:][\w.:%-]*", re.ASCII | re.IGNORECASE)
"""What libzmq takes for a host when it dials."""

CURE = """\
only loopback (127.0.0.1, ::1, localhost) and ipc:// may be used without keys, \
because whoever reaches a hub can run code on its pools. Make keys:
  taskmesh keys new hub --keys HUB
  taskmesh keys new worker --keys POOL --hub HUB/hub.public
  taskmesh keys new client operator --keys MINE --hub HUB/hub.public --mesh POOL/mesh.secret
  taskmesh keys authorize worker NAME POOL/worker.public --keys HUB
  taskmesh keys authorize client NAME MINE/client.public --keys HUB
and start each program with its directory: --keys DIR, TASKMESH_KEYS=DIR or Mesh(..., keys=DIR). \
Without keys: tcp://127.0.0.1:5550, and an SSH tunnel to reach it from another machine"""
"""What to do where keys are needed; docs/security.md says more."""


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
        """The endpoints that belong to a gateway's address.

        Raises:
            ConfigError: it is no tcp or ipc endpoint; the message says what one looks like.
        """
        if gateway.startswith(IPC) and len(gateway) > len(IPC):
            if "\0" in gateway or any("\ud800" <= character <= "\udfff" for character in gateway):
                raise ConfigError(f"{gateway!r}: a socket's path has to be text; take another one")
            if len(gateway.encode()) - len(IPC) > LONGEST_PATH:
                raise ConfigError(
                    f"{gateway}: a socket's path may have {LONGEST_PATH} bytes here; take a shorter one"
                )
            return cls(gateway, gateway + ".collector", gateway + ".control")
        host, port = tcp_parts(gateway)
        if port > 65533:
            raise ConfigError(
                f"{gateway}: collector and control need the next two ports; take one up to 65533"
            )
        return cls(gateway, f"tcp://{host}:{port + 1}", f"tcp://{host}:{port + 2}")

    def lane(self, port_or_path: str) -> str:
        """The endpoint of a lane that WELCOME names: a port on the hub's host, or an ipc endpoint."""
        if port_or_path.startswith(IPC):
            return port_or_path
        host, _ = tcp_parts(self.gateway)
        return f"tcp://{host}:{port_or_path}"


def tcp_parts(endpoint: str) -> tuple[str, int]:
    """Host and port of a tcp endpoint, brackets of IPv6 kept.

    Raises:
        ConfigError: it is not one, or more than one.
    """
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.scheme != "tcp" or not _HOST.fullmatch(host):
        cure = "write tcp://HOST:PORT or ipc://PATH, for example tcp://127.0.0.1:5550"
        raise ConfigError(f"{endpoint!r} is not an address: {cure}")
    if ":" in host:
        host = f"[{host}]"
    # libzmq would not understand what else a URL may have: a path, a user, a scheme in capitals.
    if endpoint.removeprefix("tcp://").lower() != f"{host}:{port}".lower():
        raise ConfigError(f"{endpoint!r} is not an address: write tcp://{host}:{port}")
    return host, port


def refuse_taken(endpoint: str) -> None:
    """Refuses an ipc endpoint where something is: libzmq would remove it without a word.

    Only a socket that nobody listens at any more is no obstacle: a killed hub leaves its own behind.

    Raises:
        EndpointError: somebody listens there, or the path is no socket's.
    """
    if not endpoint.startswith(IPC):
        return
    path = endpoint.removeprefix(IPC)
    address = "\0" + path[1:] if path.startswith("@") else path
    trouble = obstacle(endpoint) or _listener_at(address)
    if trouble:
        raise EndpointError(f"cannot bind {endpoint!r}: {trouble}", errno.EADDRINUSE)


def _listener_at(address: str) -> str:
    """Who has the socket at an address, and the cure; "" for nobody."""
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
    """Whether an endpoint is ipc or this machine's loopback."""
    if endpoint.startswith(IPC):
        return True
    return is_loopback(tcp_parts(endpoint)[0].strip("[]"))


def check_dialled(endpoint: str, *, keys: bool = False) -> None:
    """Refuses an address that nobody can be reached at.

    Raises:
        ConfigError: it is none, or one that only a hub can use, to choose a port or to listen everywhere.
        InsecureBind: as `check_local`.
    """
    gateway = Endpoints.of(endpoint).gateway
    check_local(gateway, "dialling", keys=keys)
    if gateway.startswith(IPC):
        return
    host, port = tcp_parts(gateway)
    if not port:
        raise ConfigError(
            f"{endpoint} cannot be dialled: with port 0 a hub chooses one when it starts; "
            "take the address that its ready line names"
        )
    if host == "*":
        raise ConfigError(f"{endpoint} cannot be dialled: * is where a hub listens; name its machine")


def check_local(endpoint: str, what: str, *, keys: bool = False) -> None:
    """Refuses all but loopback and ipc unless keys are in use: whoever reaches a hub runs code on its pools.

    Raises:
        InsecureBind: the host is not this machine's loopback; the message says how keys are made.
    """
    if not keys and not is_local(endpoint):
        raise InsecureBind(f"{what} {endpoint}: {CURE}")
