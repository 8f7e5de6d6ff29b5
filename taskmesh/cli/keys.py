"""`taskmesh keys new`, `authorize`, `revoke`, `rotate` and `show`: who may take part in a mesh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taskmesh.cli.exits import EPILOG, exits
from taskmesh.cli.options import AsJson, ConfigFile, Keys, settings
from taskmesh.cli.output import Output
from taskmesh.errors import ConfigError

if TYPE_CHECKING:
    from taskmesh.security.keys import KeyFolder

COLUMNS = ("kind", "role", "name", "public")

Role = Annotated[str, typer.Argument(metavar="ROLE", help="client, worker or operator.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The hub's name for the holder of the key.")]

keys = typer.Typer(
    name="keys",
    help="Make keys, and authorize or revoke them at a hub. Roles: hub, client, worker, operator.",
    no_args_is_help=True,
)


def folder_of(directory: Path | None, file: Path | None) -> KeyFolder:
    """The directory that --keys, TASKMESH_KEYS or the configuration names.

    Raises:
        ConfigError: none does.
    """
    from taskmesh.security.keys import KeyFolder

    path = settings(file, {"mesh__keys": directory}).mesh.keys
    if not path:
        raise ConfigError("which directory? Say so with --keys DIR or TASKMESH_KEYS")
    return KeyFolder(path)


def known(role: str, *, among: tuple[str, ...]) -> str:
    """The role, if it is one of these.

    Raises:
        ConfigError: it is not.
    """
    if role not in among:
        raise ConfigError(f"{role!r} is no role here: take {', '.join(among[:-1])} or {among[-1]}")
    return role


def new(
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
    directory: Keys = None,
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Make a pair of keys for each role, in a directory that only you can read."""
    out = Output(as_json=json)
    with exits(out):
        from taskmesh.security.keys import HUB, ROLES

        folder = folder_of(directory, file)
        wanted = [known(role, among=ROLES) for role in dict.fromkeys(roles)]
        made = [str(path) for path in folder.new(wanted, hub, mesh)]
        lines = [f"made {path}" for path in made]
        lines += [
            f"on the hub: taskmesh keys authorize {role} NAME {folder.path / f'{role}.public'} --keys DIR"
            for role in wanted
            if role != HUB
        ]
        out.value({"made": made}, "\n".join(lines))


def authorize(
    role: Role,
    name: Name,
    public: Annotated[Path, typer.Argument(metavar="FILE", help="The public key, as ROLE.public.")],
    *,
    directory: Keys = None,
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Authorize a key; a running hub accepts it within a second."""
    out = Output(as_json=json)
    with exits(out):
        from taskmesh.security.key_files import keys_in
        from taskmesh.security.keys import PEERS

        folder = folder_of(directory, file)
        entry = folder.authorize(known(role, among=PEERS), name, keys_in(public))
        out.value({"authorized": f"{role}:{name}", "file": str(entry)}, f"authorized {role} {name}")


def revoke(
    role: Role, name: Name, *, directory: Keys = None, file: ConfigFile = None, json: AsJson = False
) -> None:
    """Revoke a key; a running hub closes its links within five seconds."""
    out = Output(as_json=json)
    with exits(out):
        from taskmesh.security.keys import PEERS

        folder_of(directory, file).revoke(known(role, among=PEERS), name)
        out.value({"revoked": f"{role}:{name}"}, f"revoked {role} {name}")


def rotate(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="hub, client, worker, operator or mesh.")],
    *,
    end: Annotated[
        bool,
        typer.Option("--end", help="Remove the former key from ROLE.public, once everybody has the new one."),
    ] = False,
    directory: Keys = None,
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Replace a secret key. ROLE.public then holds both; pass it on before programs start again."""
    out = Output(as_json=json)
    with exits(out):
        from taskmesh.security.keys import HUB, MESH, ROLES

        folder = folder_of(directory, file)
        known(role, among=(*ROLES, MESH))
        public = folder.retire(role) if end else folder.rotate(role)
        everybody = {HUB: "copy it to everybody", MESH: "copy it to all clients and workers"}
        whom = everybody.get(role, "authorize it at the hub under the same name")
        then = "" if end else ", then start the programs again that use the secret key; last, rotate --end"
        out.value({"file": str(public)}, f"{public}: {whom}{then}")


def show(directory: Keys = None, file: ConfigFile = None, json: AsJson = False) -> None:
    """List the public keys of this directory, the hub's, and the keys that the hub has authorized."""
    out = Output(as_json=json)
    with exits(out):
        from taskmesh.security.keys import listing

        folder = folder_of(directory, file)
        out.rows(list(listing(folder)), COLUMNS, "no keys: `taskmesh keys new ROLE` makes them")


for _command in (new, authorize, revoke, rotate, show):
    keys.command(epilog=EPILOG)(_command)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(keys)
