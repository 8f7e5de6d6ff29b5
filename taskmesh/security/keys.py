"""A directory of keys: one's own, those of the trusted hub, and, at the hub, those of authorized peers.

    DIR/hub.public                          the hub's public key, in everybody's directory
    DIR/ROLE.secret                         one's own secret key: hub, client, worker or operator
    DIR/ROLE.public                         the public key of it, to be taken to the hub
    DIR/mesh.secret                         a key that clients and pools sign with, and the hub lacks
    DIR/authorized/ROLE/NAME.public         at the hub: an authorized key, with its role and name
    DIR/authorized.ROLE.NAME.public         the same, in a flat directory: a mounted Secret

The directory has mode 0700 and secret files have 0600. A public file holds one key a line; while a key is
rotated it holds two, and both are valid.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taskmesh.errors import KeysUnusable
from taskmesh.security.key_files import (
    KeysOutOfReach,
    check_folder,
    check_secret,
    check_unchangeable,
    keys_in,
    unreadable,
    write,
)
from taskmesh.sockets import KeyPair, key_text, new_key_pair, pair_of, raw_key

HUB, CLIENT, WORKER, OPERATOR = "hub", "client", "worker", "operator"
PEERS = (CLIENT, WORKER, OPERATOR)
"""Roles that a hub lets in, each with rights of its own."""
ROLES = (HUB, *PEERS)
MESH, MESH_FILE = "mesh", "mesh.secret"
AUTHORIZED = "authorized"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Admission:
    """The holder of an authorized public key.

    Attributes:
        role: the role that it is authorized for.
        name: the name that the hub has given it.
    """

    role: str
    name: str

    @property
    def user(self) -> str:
        """The name with its role, unique at a hub."""
        return f"{self.role}:{self.name}"


class KeyFolder:
    """The keys in a directory, read when they are asked for.

    Args:
        path: the directory; it need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()

    def __repr__(self) -> str:
        return f"<KeyFolder {self.path}>"

    # --- reading --------------------------------------------------------------------------------------------

    def own(self, role: str) -> KeyPair:
        """Return one's own key pair of a role.

        Raises:
            KeysUnusable: there is none, or others may read or change it; the message says what to do.
        """
        file = self.path / f"{role}.secret"
        check_folder(self.path)
        check_secret(file, f"`taskmesh keys new {role} --keys {self.path}` makes one")
        lines = keys_in(file)
        if len(lines) != 1:
            raise KeysUnusable(f"{file}: holds {len(lines)} keys, not one; make a new one")
        return pair_of(lines[0])

    def hub_keys(self) -> tuple[bytes, ...]:
        """Return the public keys of the hub; the first is tried first.

        Raises:
            KeysUnusable: there is none.
        """
        file = self.path / "hub.public"
        if not file.exists():
            raise KeysUnusable(f"{file}: not there; copy the file hub.public from the hub's keys to it")
        check_unchangeable(file)
        return keys_in(file)

    def mesh_keys(self) -> tuple[bytes, ...]:
        """Return the mesh key, 32 bytes, and the former one while it is rotated; empty when there is none.

        Raises:
            KeysUnusable: others may read or change it.
        """
        file = self.path / MESH_FILE
        if not file.exists():
            return ()
        check_folder(self.path)
        check_secret(file, "copy it from a worker's keys")
        return tuple(raw_key(key) for key in keys_in(file))

    def admissions(self, problems: list[str] | None = None) -> dict[bytes, Admission]:
        """Return the holders of authorized keys, by the 32 bytes of the public key.

        Args:
            problems: collects errors of files, instead of raising them; their holders are left out. A
                shortage of files or memory is raised in any case: it must not revoke anybody.

        Raises:
            KeysUnusable: a file is no key, or others may change it; one key is authorized twice.
        """
        found: dict[bytes, Admission] = {}
        for role in PEERS:
            try:
                files = self._authorized(role)
            except KeysUnusable as error:
                _tell(problems, error)
                continue
            for name, file in files:
                try:
                    self._admit(Admission(role, name), keys_in(file), found)
                except KeysUnusable as error:
                    _tell(problems, error)
        return found

    def _admit(self, admission: Admission, keys: Iterable[bytes], found: dict[bytes, Admission]) -> None:
        for key in keys:
            other = found.setdefault(raw_key(key), admission)
            if other != admission:
                raise KeysUnusable(
                    f"one key is authorized as {other.user} and as {admission.user}: revoke one, "
                    f"with `taskmesh keys revoke ROLE NAME --keys {self.path}`"
                )

    def signature(self) -> tuple[object, ...]:
        """Return a value that changes whenever a key is authorized or revoked; it is cheap to compute."""
        found: list[object] = []
        for role in PEERS:
            for _, file in self._authorized(role, check=False):
                with contextlib.suppress(OSError):
                    facts = file.stat()
                    found.append((role, file.name, facts.st_mtime_ns, facts.st_size, facts.st_ino))
        return tuple(found)

    def _authorized(self, role: str, *, check: bool = True) -> list[tuple[str, Path]]:
        """Return names and files of authorized keys, in a directory of their own and beside the hub's key."""
        found = []
        for folder, prefix in (self.path / AUTHORIZED / role, ""), (self.path, f"{AUTHORIZED}.{role}."):
            if check and folder.exists():
                check_unchangeable(folder)
            try:
                files = sorted(folder.iterdir())
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(folder, error) from None
            for file in files:
                if file.name.startswith(prefix) and file.name.endswith(".public"):
                    name = file.name.removeprefix(prefix).removesuffix(".public")
                    if NAME.fullmatch(name):
                        found.append((name, file))
        return found

    # --- making ---------------------------------------------------------------------------------------------

    def new(self, roles: Sequence[str], hub: Path | None = None, mesh: Path | None = None) -> list[Path]:
        """Make key pairs for these roles.

        Args:
            roles: the roles.
            hub: a file with the hub's public key, which is copied.
            mesh: a file with the mesh key, which is copied; without one, a worker's directory gets a new key.

        Returns:
            The public files that were made.

        Raises:
            KeysUnusable: a role has a key already, or the directory is open to others.
        """
        for role in roles:
            if (self.path / f"{role}.secret").exists():
                raise KeysUnusable(
                    f"{self.path / f'{role}.secret'}: exists already; `taskmesh keys rotate {role} "
                    f"--keys {self.path}` replaces it"
                )
        trusted = keys_in(hub) if hub is not None else ()
        shared = keys_in(mesh) if mesh is not None else ()
        if WORKER in roles and not shared and not (self.path / MESH_FILE).exists():
            shared = (key_text(secrets.token_bytes(32)),)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(self.path)
        made = []
        for role in roles:
            pair = new_key_pair()
            write(self.path / f"{role}.secret", [pair.secret], f"taskmesh {role}, secret", mode=0o600)
            made.append(self._publish(role, [pair.public]))
        if HUB in roles:
            for role in PEERS:
                (self.path / AUTHORIZED / role).mkdir(mode=0o700, parents=True, exist_ok=True)
        if shared:
            self._write_mesh(shared)
        if trusted:
            write(self.path / "hub.public", trusted, "taskmesh hub, public", mode=0o644)
        return made

    def _write_mesh(self, keys: Sequence[bytes]) -> Path:
        write(self.path / MESH_FILE, keys, "taskmesh mesh, secret", mode=0o600)
        return self.path / MESH_FILE

    def _mesh_texts(self) -> list[bytes]:
        keys = [key_text(key) for key in self.mesh_keys()]
        if not keys:
            raise KeysUnusable(f"{self.path / MESH_FILE}: not there; copy it from a worker's keys")
        return keys

    def rotate(self, role: str) -> Path:
        """Replace a secret key; the public file holds the new key and, until `retire`, the former one."""
        if role == MESH:
            return self._write_mesh([key_text(secrets.token_bytes(32)), self._mesh_texts()[0]])
        former = self.own(role).public
        pair = new_key_pair()
        public = self._publish(role, [pair.public, former])
        write(self.path / f"{role}.secret", [pair.secret], f"taskmesh {role}, secret", mode=0o600)
        return public

    def retire(self, role: str) -> Path:
        """End a rotation: the public file holds the present key alone."""
        if role == MESH:
            return self._write_mesh(self._mesh_texts()[:1])
        return self._publish(role, [self.own(role).public])

    def _publish(self, role: str, keys: Sequence[bytes]) -> Path:
        file = self.path / f"{role}.public"
        write(file, keys, f"taskmesh {role}, public", mode=0o644)
        return file

    def authorize(self, role: str, name: str, keys: Sequence[bytes]) -> Path:
        """Authorize these keys for `role`, under `name`; replaces the former keys of that name.

        Returns:
            The file that was written.

        Raises:
            KeysUnusable: the directory is no hub's, the name cannot be used, or the key is the hub's own or
                authorized already under another name.
        """
        own = self.own(HUB)
        file = self._entry(role, name)
        others = {key: who for key, who in self.admissions().items() if who != Admission(role, name)}
        for key in keys:
            if key == own.public:
                raise KeysUnusable("that is the hub's own key; authorize the public key of a peer")
            if raw_key(key) in others:
                raise KeysUnusable(f"this key is authorized already, as {others[raw_key(key)].user}")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(file, keys, f"taskmesh {role} {name}", mode=0o644)
        return file

    def revoke(self, role: str, name: str) -> None:
        """Revoke the keys of a name; a running hub closes its links within seconds.

        Raises:
            KeysUnusable: no key is authorized under that name.
        """
        self._entry(role, name)
        known = self._authorized(role)
        files = [file for known_name, file in known if known_name == name]
        if not files:
            names = ", ".join(sorted({name for name, _ in known})) or "none"
            raise KeysUnusable(f"no {role} is authorized as {name!r}; there are: {names}")
        for file in files:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise KeysUnusable(
                    f"{file}: cannot be removed ({error.strerror}); in Kubernetes take it out of the Secret"
                ) from None

    def _entry(self, role: str, name: str) -> Path:
        if role not in PEERS:
            raise KeysUnusable(f"a hub authorizes {', '.join(PEERS)}, not {role!r}")
        if not NAME.fullmatch(name):
            raise KeysUnusable(f"{name!r} cannot be a name: take up to 64 letters, digits, dots and dashes")
        return self.path / AUTHORIZED / role / f"{name}.public"


def _tell(problems: list[str] | None, error: KeysUnusable) -> None:
    if problems is None or isinstance(error, KeysOutOfReach):
        raise error
    problems.append(str(error))


def listing(folder: KeyFolder) -> Iterator[dict[str, object]]:
    """Return the keys in a directory, one row for each, without secrets.

    Raises:
        KeysUnusable: a file is no key, or open to others.
    """
    check_folder(folder.path)
    for role in ROLES:
        if (folder.path / f"{role}.secret").exists():
            yield _row("own", role, "", folder.own(role).public)
    if (folder.path / "hub.public").exists():
        for key in folder.hub_keys():
            yield _row("trusted", HUB, "", key)
    for raw, admission in folder.admissions().items():
        yield _row("authorized", admission.role, admission.name, key_text(raw))


def _row(kind: str, role: str, name: str, public: bytes) -> dict[str, object]:
    return {"kind": kind, "role": role, "name": name, "public": public.decode()}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys of a client or pool.

    Attributes:
        role: its role.
        pair: its own key pair.
        hub_keys: the keys that the hub may have; two while one is rotated.
        mesh_keys: the mesh key, and the former one while it is rotated.
    """

    role: str
    pair: KeyPair
    hub_keys: tuple[bytes, ...]
    mesh_keys: tuple[bytes, ...] = field(default=(), repr=False)


def credentials_of(directory: str, role: str) -> Credentials | None:
    """Return the credentials of a role in a directory; None when no directory is given.

    Raises:
        KeysUnusable: a key is missing, or open to others.
    """
    if not directory:
        return None
    folder = KeyFolder(directory)
    return Credentials(role, folder.own(role), folder.hub_keys(), folder.mesh_keys())
