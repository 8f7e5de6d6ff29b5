"""`taskmesh keys new`, `authorize`, `revoke`, `rotate` and `show`: the keys of a mesh's programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taskmesh.cli.command import command
from taskmesh.cli.output import Output
from taskmesh.errors import ConfigError

if TYPE_CHECKING:
    from taskmesh.config import Config
    from taskmesh.security.keys import KeyFolder

COLUMNS = ("kind", "role", "name", "public")

Role = Annotated[str, typer.Argument(metavar="ROLE", help="client, worker or operator.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The hub's name for the holder of the key.")]


def folder_of(config: Config) -> KeyFolder:
    """Return the directory that --keys, TASKMESH_KEYS or the configuration names.

    Raises:
        ConfigError: none does.
    """
    from taskmesh.security.keys import KeyFolder

    if not config.mesh.keys:
        raise ConfigError("which directory? Say so with --keys DIR or TASKMESH_KEYS")
    return KeyFolder(Path(config.mesh.keys))


folder_command = command("keys", subject=folder_of)


def known(role: str, *, among: tuple[str, ...]) -> str:
    """Return the role, if it is one of these.

    Raises:
        ConfigError: it is not.
    """
    if role not in among:
        raise ConfigError(f"{role!r} is no role here: take {', '.join(among[:-1])} or {among[-1]}")
    return role


@folder_command
def new(
    folder: KeyFolder,
    out: Output,
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...", help="hub, client, worker, operator.")],
    *,
    hub: Annotated[
        Path | None,
        typer.Option("--hub", metavar="FILE", help="The hub's hub.public, which the new keys trust."),
    ] = None,
    mesh: Annotated[
        Path | None,
        typer.Option("--mesh", metavar="FILE", help="A worker's mesh.secret; without it a new one is made."),
    ] = None,
) -> None:
    """Make a pair of keys for each role, in a directory that only you can read.

    Example:
        taskmesh keys new hub client --keys keys
    """
    from taskmesh.security.keys import HUB, ROLES

    wanted = [known(role, among=ROLES) for role in dict.fromkeys(roles)]
    made = [str(path) for path in folder.new(wanted, hub, mesh)]
    lines = [f"made {path}" for path in made]
    lines += [
        f"on the hub: taskmesh keys authorize {role} NAME {folder.path / f'{role}.public'} --keys DIR"
        for role in wanted
        if role != HUB
    ]
    out.value({"made": made}, "\n".join(lines))


@folder_command
def authorize(
    folder: KeyFolder,
    out: Output,
    role: Role,
    name: Name,
    public: Annotated[Path, typer.Argument(metavar="FILE", help="The public key, as ROLE.public.")],
) -> None:
    """Authorize a key; a running hub lets it in at once.

    Example:
        taskmesh keys authorize client ann client.public --keys keys
    """
    from taskmesh.security.key_files import keys_in
    from taskmesh.security.keys import PEERS

    entry = folder.authorize(known(role, among=PEERS), name, keys_in(public))
    out.value({"authorized": f"{role}:{name}", "file": str(entry)}, f"authorized {role} {name}")


@folder_command
def revoke(
    folder: KeyFolder,
    out: Output,
    role: Role,
    name: Name,
) -> None:
    """Revoke a key; a running hub closes its links within five seconds.

    Example:
        taskmesh keys revoke client ann --keys keys
    """
    from taskmesh.security.keys import PEERS

    folder.revoke(known(role, among=PEERS), name)
    out.value({"revoked": f"{role}:{name}"}, f"revoked {role} {name}")


@folder_command
def rotate(
    folder: KeyFolder,
    out: Output,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="hub, client, worker, operator or mesh.")],
    *,
    end: Annotated[
        bool,
        typer.Option("--end", help="Remove the former key from ROLE.public, once everybody has the new one."),
    ] = False,
) -> None:
    """Replace a secret key. ROLE.public then holds both; pass it on before programs start again.

    Example:
        taskmesh keys rotate client --keys keys
    """
    from taskmesh.security.keys import HUB, MESH, ROLES

    known(role, among=(*ROLES, MESH))
    public = folder.retire(role) if end else folder.rotate(role)
    everybody = {HUB: "copy it to everybody", MESH: "copy it to all clients and workers"}
    whom = everybody.get(role, "authorize it at the hub under the same name")
    then = "" if end else ", then start the programs again that use the secret key; last, rotate --end"
    out.value({"file": str(public)}, f"{public}: {whom}{then}")


@folder_command
def show(folder: KeyFolder, out: Output) -> None:
    """List the public keys of this directory, the hub's, and the keys that the hub has authorized.

    Example:
        taskmesh keys show --keys keys
    """
    from taskmesh.security.keys import listing

    out.rows(list(listing(folder)), COLUMNS, "no keys: `taskmesh keys new ROLE` makes them")


COMMANDS = {"new": new, "authorize": authorize, "revoke": revoke, "rotate": rotate, "show": show}
