"""A mesh with keys for tests: directories of keys, a hub, a worker."""

from pathlib import Path

from taskmesh import Mesh
from taskmesh.security.key_files import keys_in
from taskmesh.security.keys import KeyFolder
from tests.harness.program import Program
from tests.harness.programs import Programs


class Ring:
    """Directories of keys: the hub's, and one for each peer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = KeyFolder(folder / "hub-keys")
        self.hub.new(["hub"])
        self.workers = KeyFolder(folder / "workers")
        self.workers.new(["worker"], self.hub.path / "hub.public")
        self.mesh = self.workers.path / "mesh.secret"

    def peer(self, role: str, name: str, *, authorized: bool = True) -> str:
        folder = KeyFolder(self.folder / f"{role}-{name}")
        (public,) = folder.new([role], self.hub.path / "hub.public", self.mesh)
        if authorized:
            self.hub.authorize(role, name, keys_in(public))
        return str(folder.path)


class Keyed:
    """A hub with keys, a worker, and the directory of a client."""

    def __init__(self, programs: Programs, ring: Ring, bind: str = "tcp://127.0.0.1:0") -> None:
        self.programs = programs
        self.ring = ring
        self.program = programs.start("hub", "--bind", bind, "--keys", str(ring.hub.path), "--json")
        self.address = self.program.ready()["gateway"]
        self.pool = self.worker("first")
        self.client = ring.peer("client", "alice")

    def worker(self, name: str) -> Program:
        return self.programs.worker(self.address, "--name", name, "--keys", self.ring.peer("worker", name))

    def mesh(self, keys: str = "", **settings: object) -> Mesh:
        return Mesh(self.address, keys=keys or self.client, open_timeout=20, **settings)
