"""Sources of settings: TOML files, mappings, the environment and arguments; with all their problems."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from taskmesh.errors import ConfigError
from taskmesh.settings.setting import Setting, SettingError, nearest, suggestion

_log = logging.getLogger("taskmesh")

PREFIX = "TASKMESH_"
"""The beginning of the variables in the environment that are settings."""
_READ_ELSEWHERE = (
    *("os", "slot"),
    # Options of the command line alone
    *("json", "log_level", "max_tasks_per_child", "max_memory_per_child", "max_age_per_child"),
    *("gpus", "gpus_per_slot"),
)
_OF_A_SERVICE = re.compile(r"(^|_)(service_(host|port)|port$|port_\d+_(tcp|udp|sctp))")


class Findings:
    """The values found so far, later ones over earlier ones, and the problems of the rest.

    Args:
        sections: the settings of each section, by name.

    Attributes:
        values: the values by section and key.
        origins: where each of them comes from, by `section.key`.
        problems: sentences, each of which names the source, the setting and what would be right.
    """

    def __init__(self, sections: Mapping[str, Mapping[str, Setting]]) -> None:
        self.values: dict[str, dict[str, object]] = {name: {} for name in sections}
        self.origins: dict[str, str] = {}
        self.problems: list[str] = []
        self._sections = sections
        self._owners: dict[str, list[str]] = {}
        for section, known in sections.items():
            for key in known:
                self._owners.setdefault(key, []).append(section)

    def add_sections(self, content: Mapping[str, object], where: str) -> None:
        """Add the content of a file or a mapping: keys in sections."""
        for section, body in content.items():
            if section not in self._sections:
                self.problems.append(f"{where}: {self._misplaced(section, body)}")
            elif not isinstance(body, Mapping):
                self.problems.append(f"{where}: {section} has to be a section: [{section}]")
            else:
                for key, value in body.items():
                    self._add(section, str(key), value, where)

    def add(self, name: str, value: object, where: str, also: Iterable[str] = ()) -> None:
        """Add a value under `section__key`, or under a key that only one section has.

        Args:
            name: the setting's name.
            value: the value.
            where: the words for its source.
            also: further words that a suggestion may name.
        """
        section, nested, key = name.partition("__")
        if nested:
            if section in self._sections:
                self._add(section, key, value, where)
            else:
                self.problems.append(
                    f"{where}: unknown section {section!r}{suggestion(section, self._sections)}"
                )
        elif name not in self._owners:
            self.problems.append(f"{where}: unknown key{suggestion(name, [*self._owners, *also])}")
        elif len(self._owners[name]) > 1:
            start, spelt = (PREFIX, str.upper) if where.startswith(PREFIX) else ("", str.lower)
            choices = " or ".join(start + spelt(f"{owner}__{name}") for owner in self._owners[name])
            self.problems.append(f"{where}: several sections have it, write {choices}")
        else:
            self._add(self._owners[name][0], name, value, where)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Add TASKMESH_SECTION__KEY, and TASKMESH_KEY for a key that only one section has.

        An unknown one is an error, except for what Kubernetes sets for services whose names begin with ours.
        """
        for variable, value in environ.items():
            name = variable.removeprefix(PREFIX).lower()
            if variable.startswith(PREFIX) and not (name in _READ_ELSEWHERE or _OF_A_SERVICE.search(name)):
                self.add(name, value, variable)

    def add_file(self, file: Path) -> None:
        """Add a TOML file: all of it, or [tool.taskmesh] of a pyproject.toml."""
        self.add_sections(_content(file) or {}, str(file))

    def add_nearest_file(self, directory: Path | None) -> None:
        """Add the file of the innermost folder that has one; taskmesh.toml goes before pyproject.toml.

        The last folder that counts is the home directory, or where a file system is mounted.
        """
        start = directory or _working_directory()
        home = Path(os.path.realpath(os.path.expanduser("~")))
        for folder in (start, *start.parents):
            for file in (folder / "taskmesh.toml", folder / "pyproject.toml"):
                exists = os.path.lexists if file.stem == "taskmesh" else os.path.isfile
                if not exists(file) or _is_anothers(file):
                    continue
                if (content := _content(file)) is not None:
                    self.add_sections(content, str(file))
                    return
            if folder == home or os.path.ismount(folder):
                return

    def _add(self, section: str, key: str, value: object, where: str) -> None:
        known = self._sections[section]
        if key not in known:
            self.problems.append(f"{where}: unknown key {key!r} in [{section}]{suggestion(key, known)}")
            return
        try:
            self.values[section][key] = known[key].read(value)
            self.origins[f"{section}.{key}"] = where
        except SettingError as error:
            self.problems.append(f"{where}: {section}.{key} {error}")

    def _misplaced(self, word: str, body: object) -> str:
        """Describe the problem of a word that stands where only sections may."""
        if word in self._owners:
            return f"{word} stands in a section: [{'] or ['.join(self._owners[word])}]"
        near = "" if isinstance(body, Mapping) else nearest(word, self._owners)
        if near:
            owners = "] or [".join(self._owners[near])
            return f"unknown key {word!r}; did you mean {near!r} in [{owners}]?"
        return f"unknown section [{word}]{suggestion(word, self._sections)}"


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError(
            "taskmesh.toml cannot be looked for: the working directory has been deleted. Change to one that "
            "exists, or give config={}"
        ) from None


def _is_anothers(file: Path) -> bool:
    """Return True if another user than root can put settings there, as the address of a hub of his."""
    owners = set()
    for path, is_followed in ((file, False), (file, True), (file.parent, True)):
        with contextlib.suppress(OSError):  # a dangling link: reading it tells that
            owners.add(os.stat(path, follow_symlinks=is_followed).st_uid)
    others = owners - {0, os.geteuid()}
    if others:
        _log.warning(
            "%s is passed over: it, or its folder, belongs to another user (id %d); to use it, name it with "
            "--config or Mesh(config=)",
            file,
            min(others),
        )
    return bool(others)


_parsed: Callable[[str], dict[str, Any]] = lru_cache(maxsize=8)(tomllib.loads)
"""A program with a mesh in each of its tests would read the same file a thousand times."""


def _content(file: Path) -> Mapping[str, object] | None:
    """Return the settings of a file; None for a pyproject.toml without any."""
    try:
        parsed = _parsed(file.read_text(encoding="utf-8-sig"))  # a BOM is Notepad's
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read as TOML: {error}") from error
    if file.name != "pyproject.toml":
        return parsed
    tool = parsed.get("tool", {})
    section = tool.get("taskmesh") if isinstance(tool, dict) else tool
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"{file}: tool.taskmesh has to be a section: [tool.taskmesh]")
    return section
