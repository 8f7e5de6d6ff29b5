"""The other end of the side port: one request, for `taskmesh health` and `taskmesh drain --http`."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from pathlib import Path

from taskmesh.config import Config
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.http.settings import http_parts, read_token

ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  where a program listens at all addresses, ask here


class SidePortUnreachable(TaskMeshError):
    """Nobody answers at a side port."""


@dataclass(frozen=True, slots=True)
class SideClient:
    """Asks one side port."""

    host: str
    port: int
    token: str
    timeout: float

    def ask(self, method: str, path: str) -> tuple[int, str]:
        """Status and text of the answer.

        Raises:
            SidePortUnreachable: there was none within the time-out.
        """
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        link = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            link.request(method, path, headers=headers)
            answer = link.getresponse()
            return answer.status, answer.read().decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            raise SidePortUnreachable(
                f"no side port answers at {self.host}:{self.port}: {error}; "
                "is the program started with --http?"
            ) from None
        finally:
            link.close()


def side_client(config: Config, timeout: float) -> SideClient:
    """The client of the side port that the settings name.

    Raises:
        ConfigError: they name none, or not a usable one.
    """
    program = config.program
    if not program.http:
        raise ConfigError("which side port? Give --http HOST:PORT, or set TASKMESH_HTTP")
    host, port = http_parts(program.http)
    token = read_token(Path(program.http_token_file)) if program.http_token_file else ""
    return SideClient(ANY.get(host, host), port, token, timeout)
