"""Settings: defaults < taskmesh.toml or [tool.taskmesh] of pyproject.toml < TASKMESH_* < arguments.

Read once, when a mesh or a program starts, checked as a whole, and handed down as frozen sections. Every
problem is named with where it stands and what would be right, all of them in one error.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from taskmesh.errors import ConfigError
from taskmesh.system.cpus import usable_cpus

Source: TypeAlias = "str | os.PathLike[str] | Mapping[str, object] | Config | None"

_PREFIX = "TASKMESH_"
_READ_ELSEWHERE = ("os", "slot")  # variables that are no settings
_OF_A_SERVICE = re.compile(r"(^|_)(service_(host|port)|port$|port_\d+_(tcp|udp|sctp))")
_ARGUMENTS = ("workers", "config")  # what Mesh takes by other names than the keys'
_SIZES = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1}
_MOST_SECONDS, _MOST = 1e9, 1 << 60  # what clocks and waits, and messages and limits, can still take
MOST_SLOTS = 4096
"""Slots of a pool: each is a process, and costs the pool half a dozen descriptors."""


def setting(default: Any, expects: str, *, kw_only: bool = True, **limits: Any) -> Any:
    """Declares a key: its default, what values it takes in words, and limits.

    `least` and `most` are of numbers, or of a list's length; `why` there is a most; `among` is of texts.
    """
    most = _MOST_SECONDS if isinstance(default, float) else _MOST
    rule = {"least": 0, "most": most, "why": "", "among": (), "expects": expects}
    return field(default=default, metadata=rule | limits, kw_only=kw_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """Which mesh, and how it is reached.

    Attributes:
        address: gateway endpoints of the hub, tried in order; empty for an embedded mesh.
        hub: where an embedded hub lives: a thread of this process, or a process of its own.
        open_timeout: seconds that opening may take.
        keys: the directory of this program's keys (`taskmesh keys`); empty for none, then only this machine
            can be reached. An embedded mesh needs none.
    """

    address: tuple[str, ...] = setting((), "an endpoint like 'tcp://127.0.0.1:5550', or a list of them")
    hub: str = setting("thread", "'thread' or 'process'", among=("thread", "process"))
    open_timeout: float = setting(10.0, "seconds, more than 0", least=1e-3)
    keys: str = setting("", "a directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What one client may have under way: tasks, and bytes. Beyond it submit() waits.

    Attributes:
        max_bytes: of arguments at the client; at the hub also of results that the client has not taken, and
            beyond that no more of its tasks are run.
        hub_timeout: seconds without an answer of the hub after which a client gives up: every open task ends
            with HubUnreachable, and the mesh takes no more; 0 waits for ever.
        result_codec: how results travel: "pickle", or "safe": as plain data, and errors as RemoteError, so
            that this program unpickles nothing that comes from others.
    """

    max_pending: int = setting(2_000_000, "a whole number of tasks, at least 1", least=1)
    max_bytes: int = setting(1 << 30, "bytes, as a number or like '256MiB'", least=1)
    hub_timeout: float = setting(0.0, "seconds, 0 for any time", least=0)
    result_codec: str = setting("pickle", "'pickle' or 'safe'", among=("pickle", "safe"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """The ledger's limits and clocks.

    Attributes:
        lease: seconds after which a silent pool's tasks are given to others.
        beat: seconds between a pool's signs of life.
        max_tasks: what the ledger takes in, of all clients together.
        max_bytes: of all payloads that the hub keeps: calls get half of them, the rest is for results that
            wait, outcomes that are kept, and functions; 0 for half of the memory that the hub may take.
        max_pools: pools at a time, as far as the limit of open files allows so many.
        max_clients: client sessions at a time, those included whose clients are away.
        key_sessions: of pools, and of clients, at a time that show one key; 0 for any number.
        key_messages_per_s, key_bytes_per_s: what all who show one key may say to the hub together; 0 for any
            rate. What is over is dropped and said again later (docs/adr/0014).
        crash_limit: crashes after which a task is given up.
        pool_loss_limit: pools that died while they had a task, after which it is given up.
        result_ttl: seconds that outcomes are kept for a client that is away; its tasks go on after that.
        versions: what becomes of pools and clients with another minor version of Python, another pickle
            protocol or another cloudpickle than the hub's: "warn" or "refuse".
        lanes: ports for the lanes of pools; empty for any on loopback, and 5600-6799 elsewhere.
        store: URL of a Redis in which outcomes that are kept outlive the hub; empty for none.
        store_file: a file with that URL, for one with a password.
    """

    lease: float = setting(10.0, "seconds, more than 0", least=1e-3)
    beat: float = setting(1.0, "seconds, more than 0", least=1e-3)
    max_tasks: int = setting(4_000_000, "a whole number of tasks, at least 1", least=1)
    max_bytes: int = setting(0, "bytes, as a number or like '4GiB', 0 for half of the memory", least=0)
    max_pools: int = setting(1000, "a whole number of pools, at least 1", least=1)
    max_clients: int = setting(10_000, "a whole number of clients, at least 1", least=1)
    key_sessions: int = setting(4096, "a whole number of sessions, 0 for any", least=0)
    key_messages_per_s: int = setting(200_000, "a whole number of messages, 0 for any", least=0)
    key_bytes_per_s: int = setting(2 << 30, "bytes, as a number or like '2GiB', 0 for any", least=0)
    crash_limit: int = setting(3, "a whole number, at least 1", least=1)
    pool_loss_limit: int = setting(5, "a whole number, at least 2", least=2)
    result_ttl: float = setting(3600.0, "seconds", least=0)
    versions: str = setting("warn", "'warn' or 'refuse'", among=("warn", "refuse"))
    lanes: str = setting("", "a range of ports like '5600-6799'")
    store: str = setting("", "a URL like 'redis://127.0.0.1:6379/0'")
    store_file: str = setting("", "the path of a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """What a pool offers.

    Attributes:
        concurrency: slots, up to MOST_SLOTS; 0 for one per usable CPU.
        queues, tags: what it serves, and what it can do.
        grace: seconds that running tasks have when it drains.
        only_registered: modules and packages whose functions alone it runs, by name; empty for any function.
        max_payload: bytes of one call's arguments or result on the wire; an embedded pool has no limit.
    """

    concurrency: int = setting(
        0,
        "a whole number of slots, 0 for one per CPU",
        least=0,
        most=MOST_SLOTS,
        why=" (each slot is a process; start further pools for more)",
    )
    queues: tuple[str, ...] = setting(("default",), "a list of queue names, at least one", least=1)
    tags: tuple[str, ...] = setting((), "a list of tags")
    grace: float = setting(30.0, "seconds", least=0)
    only_registered: tuple[str, ...] = setting((), "a list of modules")
    max_payload: int = setting(256 << 20, "bytes, as a number or like '256MiB'", least=1)

    @property
    def slots(self) -> int:
        """How many slots that makes on this machine."""
        return self.concurrency or max(1, math.ceil(usable_cpus()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    """What the programs hub and worker have beside their work.

    Attributes:
        http: HOST:PORT of the side port for probes and metrics; empty for none.
        http_token_file: a file with the token that its users need; required beyond loopback.
    """

    http: str = setting("", "HOST:PORT like '127.0.0.1:5580'")
    http_token_file: str = setting("", "the path of a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, one frozen section for each part that reads them."""

    mesh: MeshConfig = field(default_factory=MeshConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    hub: HubConfig = field(default_factory=HubConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    program: ProgramConfig = field(default_factory=ProgramConfig)


_SECTIONS: dict[str, type] = {
    "mesh": MeshConfig,
    "client": ClientConfig,
    "hub": HubConfig,
    "pool": PoolConfig,
    "program": ProgramConfig,
}
_KEYS = {name: {f.name: f for f in fields(section)} for name, section in _SECTIONS.items()}
_OWNERS: dict[str, list[str]] = {}
for _section, _known in _KEYS.items():
    for _key in _known:
        _OWNERS.setdefault(_key, []).append(_section)


def load(
    source: Source = None,
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    command_line: bool = False,
) -> Config:
    """Puts the settings together.

    Args:
        source: a TOML file, a mapping of sections, or a finished Config (then neither a file nor the
            environment is read); None looks for taskmesh.toml or [tool.taskmesh] from `directory` upwards.
        overrides: arguments, as `section__key` or as a key that only one section has.
        environ: os.environ, unless given.
        directory: the working directory, unless given.
        command_line: the overrides are options of a command, which are called `--key`.

    Raises:
        ConfigError: names every unknown key with the nearest one, and every value that cannot be used.
    """
    start = source if isinstance(source, Config) else Config()
    found = _Findings()
    if not isinstance(source, Config):
        _read_source(source, directory, found)
        _read_environment(os.environ if environ is None else environ, found)
    for name, value in (overrides or {}).items():
        option = f"--{name.rpartition('__')[2].replace('_', '-')}"
        found.flat(name, value, option if command_line else f"argument {name}", _ARGUMENTS)
    if found.problems:
        raise ConfigError("\n".join(found.problems))
    return replace(
        start,
        **{name: replace(getattr(start, name), **values) for name, values in found.values.items() if values},
    )


class TooMuchError(ValueError):
    """A number is above what its key may be; the text is that limit."""


class _Findings:
    """Values found so far by section, later ones over earlier ones, and what was wrong with the rest."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, object]] = {name: {} for name in _SECTIONS}
        self.problems: list[str] = []

    def sections(self, content: Mapping[str, object], where: str) -> None:
        for section, body in content.items():
            if section not in _SECTIONS:
                self.problems.append(f"{where}: {_astray(section, body)}")
            elif not isinstance(body, Mapping):
                self.problems.append(f"{where}: {section} has to be a section: [{section}]")
            else:
                for key, value in body.items():
                    self.keyed(section, str(key), value, where)

    def flat(self, name: str, value: object, where: str, also: Iterable[str] = ()) -> None:
        section, nested, key = name.partition("__")
        if nested:
            if section in _SECTIONS:
                self.keyed(section, key, value, where)
            else:
                self.problems.append(f"{where}: unknown section {section!r}{_near(section, _SECTIONS)}")
        elif name not in _OWNERS:
            self.problems.append(f"{where}: unknown key{_near(name, [*_OWNERS, *also])}")
        elif len(_OWNERS[name]) > 1:
            start, spelt = (_PREFIX, str.upper) if where.startswith(_PREFIX) else ("", str.lower)
            choices = " or ".join(start + spelt(f"{owner}__{name}") for owner in _OWNERS[name])
            self.problems.append(f"{where}: several sections have it, write {choices}")
        else:
            self.keyed(_OWNERS[name][0], name, value, where)

    def keyed(self, section: str, key: str, value: object, where: str) -> None:
        known = _KEYS[section].get(key)
        if known is None:
            self.problems.append(f"{where}: unknown key {key!r} in [{section}]{_near(key, _KEYS[section])}")
            return
        try:
            self.values[section][key] = converted(known.metadata, known.default, value)
        except TooMuchError as error:
            self.problems.append(f"{where}: {section}.{key} may be {error}, not {value!r}")
        except (TypeError, ValueError, OverflowError):  # the last: sizes such as 'infMiB'
            expects = known.metadata["expects"]
            self.problems.append(f"{where}: {section}.{key} has to be {expects}, not {value!r}")


def _astray(word: str, body: object) -> str:
    """Return what is wrong with a word that stands where only sections may."""
    if word in _OWNERS:
        return f"{word} stands in a section: [{'] or ['.join(_OWNERS[word])}]"
    keys = [] if isinstance(body, Mapping) else difflib.get_close_matches(word, _OWNERS, n=1)
    if keys:
        return f"unknown key {word!r}; did you mean {keys[0]!r} in [{'] or ['.join(_OWNERS[keys[0]])}]?"
    return f"unknown section [{word}]{_near(word, _SECTIONS)}"


def _near(word: str, known: Iterable[str]) -> str:
    """The nearest known words, as the end of a sentence."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"


def converted(rule: Mapping[str, Any], default: object, value: object) -> object:
    """Return a value in the type of the key's default; text is read as the environment and TOML write it."""
    if isinstance(default, tuple):
        texts = _listed(value)
        if len(texts) < rule["least"]:
            raise ValueError
        return texts
    if isinstance(default, str):
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if value not in (rule["among"] or (value,)) or not isinstance(value, str):
            raise ValueError
        return value
    number = _seconds(value) if isinstance(default, float) else _whole(value)
    if number < rule["least"]:
        raise ValueError
    if number > rule["most"]:
        raise TooMuchError(f"{rule['most']:,.0f} at most{rule['why']}")
    return number


def _listed(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple | set | frozenset):
        raise TypeError
    texts = [part.strip() for part in parts if isinstance(part, str)]
    if len(texts) != len(parts):
        raise TypeError
    return tuple(filter(None, texts))


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError
    return seconds


def _whole(value: object) -> int:
    """A whole number, or a size such as '256MiB'."""
    if isinstance(value, str):
        text = value.strip().lower().replace("_", "")
        for unit, factor in _SIZES.items():
            if text.endswith(unit):
                return int(float(text.removesuffix(unit)) * factor)
        return int(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _read_source(source: Source, directory: Path | None, found: _Findings) -> None:
    if isinstance(source, Mapping):
        found.sections(source, "config")
    elif source is None:
        for file, content in _nearest(directory or _working_directory()):
            found.sections(content, str(file))
    elif not isinstance(source, Config):
        if not isinstance(source, str | os.PathLike):
            raise ConfigError(
                f"config= has to be a TOML file, a mapping of sections or a Config, not {source!r}"
            )
        file = Path(source)
        found.sections(_section_of(file, _parsed(file)) or {}, str(file))


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError(
            "taskmesh.toml cannot be looked for: the working directory has been deleted. Change to one that "
            "exists, or give config={}"
        ) from None


def _nearest(directory: Path) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """The file of the innermost folder that has one; taskmesh.toml goes before pyproject.toml."""
    for folder in (directory, *directory.parents):
        for file in (folder / "taskmesh.toml", folder / "pyproject.toml"):
            if (os.path.lexists if file.stem == "taskmesh" else os.path.isfile)(file):  # may we look there?
                parsed = _parsed(file)
                section = _section_of(file, parsed)
                if section is not None:
                    yield file, section
                    return


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # a BOM is Notepad's
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read as TOML: {error}") from error


def _section_of(file: Path, parsed: dict[str, Any]) -> Mapping[str, object] | None:
    """Return what a file says of us; None when it is a pyproject.toml that says nothing."""
    if file.name != "pyproject.toml":
        return parsed
    tool = parsed.get("tool", {})
    section = tool.get("taskmesh") if isinstance(tool, dict) else tool
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"{file}: tool.taskmesh has to be a section: [tool.taskmesh]")
    return section


def _read_environment(environ: Mapping[str, str], found: _Findings) -> None:
    """Takes TASKMESH_SECTION__KEY, and TASKMESH_KEY for a key that only one section has.

    An unknown one is an error, except for what Kubernetes sets for services whose names begin with ours.
    """
    for variable, value in environ.items():
        name = variable.removeprefix(_PREFIX).lower()
        if variable.startswith(_PREFIX) and not (name in _READ_ELSEWHERE or _OF_A_SERVICE.search(name)):
            found.flat(name, value, variable)
