"""The side port's address and token: settings read and checked before anything listens."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from taskmesh.config import Config
from taskmesh.errors import ConfigError, InsecureBind
from taskmesh.http.client import SideClient
from taskmesh.security.key_files import read_secret
from taskmesh.system.loopback import is_loopback

SHORTEST_TOKEN = 16
"""Characters of a token, at least."""


@dataclass(frozen=True, slots=True)
class SideSettings:
    """Settings of the side port.

    Attributes:
        host: the host, without brackets.
        port: the port; 0 for any free one.
        token_file: the file with its token, if there is one.
    """

    host: str
    port: int
    token_file: Path | None = None

    def refusal(self, authorization: str, origin: str, host: str) -> tuple[int, str] | None:
        """Return status and text that refuse a request without the token, or a browser where none is set.

        A page in this machine's browser could post here, or read by a name that it rebinds to loopback.

        Args:
            authorization: the header of this name; empty without one, as the others.
            origin: likewise.
            host: likewise.
        """
        if self.token_file is not None:
            is_given = has_token(authorization, self.token_file)
            return None if is_given else (401, "give the token: Authorization: Bearer ...")
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if origin or (host and not is_loopback(name.strip("[]"))):
            return 403, "without a token only programs of this machine are served, by its loopback name"
        return None


def side_settings(config: Config) -> SideSettings | None:
    """Return the address and token file of `http` and `http_token_file`; None for no side port.

    Raises:
        ConfigError: the address or the token file cannot be used.
        InsecureBind: the address is beyond loopback, and no token is set.
    """
    program = config.program
    if not program.http:
        return None
    host, port = http_parts(program.http)
    file = Path(program.http_token_file) if program.http_token_file else None
    if file is not None:
        read_token(file)
    if file is None and not is_loopback(host):
        raise InsecureBind(
            f"the side port at {program.http} is beyond loopback and has no token: whoever reaches it could "
            "drain pools and read names of tasks. Write a token into a file (`openssl rand -hex 32 > FILE`, "
            "mode 0600) and give --http-token-file FILE, or take 127.0.0.1"
        )
    return SideSettings(host, port, file)


def side_client(config: Config, timeout: float) -> SideClient:
    """Return the client of the side port that the settings name.

    Raises:
        ConfigError: they name no side port, or it cannot be used.
    """
    program = config.program
    if not program.http:
        raise ConfigError("which side port? Give --http HOST:PORT, or set TASKMESH_HTTP")
    host, port = http_parts(program.http)
    token = read_token(Path(program.http_token_file)) if program.http_token_file else ""
    return SideClient(host, port, token, timeout)


def http_parts(address: str) -> tuple[str, int]:
    """Return host (without brackets) and port of HOST:PORT.

    Raises:
        ConfigError: it is not of this form.
    """
    hint = "write HOST:PORT, for example 127.0.0.1:5580 or [::1]:5580; port 0 takes any free one"
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"{address!r} is no address for HTTP: {hint}") from None
    if not host or port is None or parts.path or parts.query or parts.username is not None:
        raise ConfigError(f"{address!r} is no address for HTTP: {hint}")
    return host, port


def has_token(authorization: str, file: Path) -> bool:
    """Return True if an Authorization header has the token of a file; none has it when the file is gone.

    The file is read each time: Kubernetes replaces a mounted Secret while the program runs.
    """
    scheme, _, given = authorization.partition(" ")
    try:
        token = read_token(file)
    except ConfigError:
        return False
    same = hmac.compare_digest(given.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and same


def read_token(file: Path) -> str:
    """Return the token in a file that only its owner can read, or that root has mounted here.

    Raises:
        ConfigError: it cannot be read, others may read it, or it holds no token.
    """
    text = read_secret(file, "the token file")
    if len(text) < SHORTEST_TOKEN or len(text.split()) != 1:
        raise ConfigError(
            f"the token in {file} must be one word of {SHORTEST_TOKEN} characters or more: "
            f"openssl rand -hex 32 > {file}"
        )
    return text
