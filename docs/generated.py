"""Lists of the site that are written from the code: a line `<!-- generated: NAME -->` of a page becomes one.

An extension of Sphinx. `LISTS` has the function of each name; it returns Markdown.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import taskmesh
from taskmesh import task
from taskmesh.cli.application import GROUPS, app
from taskmesh.cli.command import EXIT_CODES
from taskmesh.client.options import TaskOptions
from taskmesh.config import SECTIONS
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.metrics import hub_families
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.metrics import pool_families
from taskmesh.settings.setting import UNITS
from taskmesh.settings.source import PREFIX

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"][
    "Repository"
]
OUTWARD = re.compile(r"(?<!!)(\[[^\]]*\]\()((?:\.\./)+[^)\s]+)\)")
MARK = re.compile(r"^<!-- generated: ([\w -]+) -->$", re.MULTILINE)
FIRST_OPTIONS = ("retries", "timeout", "hard_timeout", "key", "queue", "priority", "delay", "limit")
"""The options of a task that the first day needs."""
FIRST_METHODS = {
    "Task": ("submit", "with_options"),
    "Mesh": ("submit", "call", "map", "close"),
    "TaskFuture": ("result", "exception", "cancel", "done"),
    "gather": (),
    "as_completed": (),
}
"""The twelve methods and functions that the first day needs, beside `task`."""
INTERNAL = {"around", "set_exception", "set_result", "set_running_or_notify_cancel"}
"""Public methods that programs have no use for."""
ANNOTATED = re.compile(r"~?(?:typing\.)?Annotated\[(\w+), .*?\](?= = |[,)]$)")
"""A type with the values that it takes, in a signature."""
OPTION_VALUES = re.compile(r": [~\w.]*Unpack\[[~\w.]*OptionValues\]")
"""The type of options by name, which have a page of their own."""
VARIABLE = re.compile(r"~(?:typing\.~)?([A-Z])\b")
"""A type variable in a signature."""
TASK = re.compile(r"[~\w.]*\bTask\[.*P, .*\]")
"""The type of a task function, with those of its arguments and its result."""
_LOGS = {"LogEvent", "_log", "_news", "_record", "add", "log", "news", "partial", "record"}
"""Functions that are given the name of an event."""
_EVENT = re.compile(r"[a-z]+\.[a-z]+")
_QUOTED = re.compile(rf'"{_EVENT.pattern}"')


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def entries(owner: object, head: str = "Attributes:", indent: int = 4) -> dict[str, str]:
    """Return the entries below a heading of a docstring."""
    text = inspect.cleandoc(owner.__doc__ or "").partition(f"{head}")[2]
    found = re.findall(rf"^ {{{indent}}}(\w+): (.+(?:\n {{{indent + 4}}}.+)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def _shown(key: str, value: object) -> str:
    """Return a default as TOML has it."""
    if key in {"max_bytes", "max_payload"} and isinstance(value, int) and value:
        unit = next(name for name in ("GiB", "MiB") if value >= UNITS[name.lower()])
        return f'`"{value // UNITS[unit.lower()]}{unit}"`'
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`".replace("'", '"')
    return (
        f'`"{value}"`'
        if isinstance(value, str)
        else f"`{value:g}`"
        if isinstance(value, float)
        else f"`{value}`"
    )


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def settings() -> str:
    """List the settings, a section each."""
    parts = []
    several = Counter(each.name for owner in SECTIONS.values() for each in fields(owner))
    for section, owner in SECTIONS.items():
        meanings = entries(owner)
        rows = []
        for each in fields(owner):
            path = each.name if several[each.name] == 1 else f"{section}__{each.name}"
            default = _shown(each.name, _default(each))
            rows.append((f"`{each.name}`", f"`{PREFIX}{path.upper()}`", default, meanings[each.name]))
        first = inspect.cleandoc(owner.__doc__ or "").partition("\n")[0]
        head = ("setting", "variable", "default", "meaning")
        parts.append(f"## `[{section}]`\n\n{first}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def options(first: bool) -> str:
    """List the options of a task: those of the first day, or all others."""
    meanings, plain = entries(task, "options:", 8), TaskOptions()
    every = [each.name for each in fields(TaskOptions)]
    names = FIRST_OPTIONS if first else [name for name in every if name not in FIRST_OPTIONS]
    defaults = {"retries": "0", **{name: "None" for name in every if getattr(plain, name) == 0.0}}
    defaults |= {
        name: repr(getattr(plain, name)) for name in ("priority", "detach", "ignore_result", "stream_logs")
    }
    rows = [
        (f"`{name}`", f"`{defaults.get(name, repr(getattr(plain, name)))}`", meanings[name]) for name in names
    ]
    return table(("option", "default", "meaning"), rows)


def _commands(command: TyperCommand | TyperGroup, names: list[str]) -> Iterator[str]:
    """Yield the part of a command, and those of its subcommands."""
    path = " ".join(["taskmesh", *names])
    text = re.sub(r"^Example: (.+)$", r"Example: `\1`", command.help or "", flags=re.MULTILINE)
    yield f"{'#' * (2 + len(names))} `{path}`\n\n{text}"
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from _commands(each, [*names, name])
        return
    context = command.make_context(path, [], resilient_parsing=True)
    yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
    rows = []
    for each in command.get_params(context):
        record = each.get_help_record(context)
        name, text = record or (each.human_readable_name, getattr(each, "help", "") or "")
        shown = re.sub(r" <[\w\[\]]+>", "", name)  # the type of a value that has no word of its own
        rows.append((f"`{shown}`", " ".join(text.split())))
    yield table(("", "meaning"), rows)


def commands() -> str:
    """List the commands with their options, in the groups of `taskmesh --help`."""
    every = cast("TyperGroup", get_command(app))
    parts = []
    for group, names in GROUPS.items():
        parts.append(f"## {group}")
        for name in names:
            parts += _commands(every.commands[name], [name])
    return "\n\n".join(parts)


def exit_codes() -> str:
    """List the exit codes of the command line."""
    said = EXIT_CODES.partition(":")[2].rstrip(".")
    return table(("code", "meaning"), re.findall(r"(\d+) (.+?)(?:; |$)", said))


def metrics() -> str:
    """List the metrics of a hub and of a worker."""
    hub = HubMachine(HubSettings(epoch=1), 0.0)
    hub.state.diagnostics.journal = {"state": "connected", "waiting_bytes": 0, "lag": 0.0}
    parts = []
    pool = PoolMachine(PoolSettings("p", 1, 1), 0.0)
    for title, found in (("Of a hub", hub_families(hub, {})), ("Of a worker", pool_families(pool))):
        rows = [(f"`{family.name}`", family.help) for family in found]
        parts.append(f"## {title}\n\n{table(('metric', 'meaning'), rows)}")
    return "\n\n".join(parts)


def _names(node: ast.AST) -> set[str]:
    """Return the fields that a dictionary, or a call's keywords, name."""
    if isinstance(node, ast.Dict):
        return {
            key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
    return {word.arg for word in node.keywords if word.arg} if isinstance(node, ast.Call) else set()


def events() -> str:
    """List the events that programs log, with their fields, from the calls in the code."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for path in sorted((ROOT / "taskmesh").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for function in ast.walk(ast.parse(text)) if _QUOTED.search(text) else ():
            if not isinstance(function, ast.FunctionDef):
                continue
            dicts = {
                target.id: node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for call in ast.walk(function):
                name = getattr(call, "func", None)
                if getattr(name, "id", getattr(name, "attr", "")) not in _LOGS or not isinstance(
                    call, ast.Call
                ):
                    continue
                for said in call.args:
                    if isinstance(said, ast.Constant) and _EVENT.fullmatch(str(said.value)):
                        own, places = found.setdefault(str(said.value), (set(), set()))
                        places.add(path.relative_to(ROOT / "taskmesh").parts[0])
                        for part in (*call.args, call):
                            own |= _names(dicts.get(part.id, part) if isinstance(part, ast.Name) else part)
    rows = [
        (f"`{name}`", ", ".join(sorted(places)), ", ".join(f"`{each}`" for each in sorted(own)))
        for name, (own, places) in sorted(found.items())
    ]
    return table(("event", "logged by", "fields"), rows)


def _described(name: str, members: Iterable[str] | None = None) -> list[str]:
    """Return the directives that describe a public name, with all of its members or some."""
    found = getattr(taskmesh, name)
    if not isinstance(found, type):
        return [f".. autofunction:: {name}"]
    lines = [f".. autoclass:: {name}"]
    return [*lines, "   :members:"] if members is None else [*lines, "", *_members(name, members, "   ")]


def _members(name: str, members: Iterable[str], indent: str = "") -> list[str]:
    owner = getattr(taskmesh, name)
    kinds = {each: inspect.getattr_static(owner, each) for each in members}
    return [
        f"{indent}.. auto{'property' if isinstance(kind, property) else 'method'}:: {name}.{each}"
        for each, kind in kinds.items()
    ]


def _is_ours(owner: type, name: str) -> bool:
    """Return True for a public method or property that taskmesh has defined."""
    found = inspect.getattr_static(owner, name)
    function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    is_public = inspect.isfunction(function) and not name.startswith("_") and name not in INTERNAL
    return is_public and function.__module__.startswith("taskmesh.")


def _block(lines: Iterable[str]) -> str:
    """Return directives of reStructuredText as a block of Markdown."""
    return "\n".join(["```{eval-rst}", ".. currentmodule:: taskmesh", "", *lines, "```"])


def python(first: bool) -> str:
    """List the public names: those of the first day, or all others."""
    if first:
        names = {"task": (), **FIRST_METHODS}
        return _block(line for name, members in names.items() for line in (*_described(name, members), ""))
    parts = []
    for name, known in FIRST_METHODS.items():
        owner = getattr(taskmesh, name)
        if isinstance(owner, type):
            more = [each for each in dir(owner) if _is_ours(owner, each) and each not in known]
            parts += [f"## More of {name}", _block(_members(name, more))] if more else []
    rest = [name for name in taskmesh.__all__ if name not in {"errors", "task", *FIRST_METHODS}]
    parts += ["## Other names", _block(line for name in rest for line in (*_described(name), ""))]
    return "\n\n".join(parts)


LISTS = {
    "commands": commands,
    "events": events,
    "exit codes": exit_codes,
    "metrics": metrics,
    "options first": lambda: options(first=True),
    "options advanced": lambda: options(first=False),
    "python first": lambda: python(first=True),
    "python advanced": lambda: python(first=False),
    "settings": settings,
}


def written(text: str, page: Path) -> str:
    """Return a page with its lists; links that lead out of the site lead to the repository."""

    def outward(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        is_inside = target.is_relative_to(HERE)
        return link[0] if is_inside else f"{link[1]}{REPOSITORY}/blob/main/{target.relative_to(ROOT)})"

    return OUTWARD.sub(outward, MARK.sub(lambda mark: LISTS[mark[1]](), text))


def _on_source_read(site: Sphinx, name: str, source: list[str]) -> None:
    source[0] = written(source[0], site.env.doc2path(name, base=True))


def _on_docstring(*told: Any) -> None:
    """Leave the options of `task` to their own page."""
    name, lines = told[2], told[5]
    if name == "taskmesh.task":
        first = next(number for number, line in enumerate(lines) if line.startswith("    options:"))
        lines[first:] = [line for line in lines[first:] if not line.startswith(" " * 8)]


def _on_signature(*told: Any) -> tuple[str | None, str | None]:
    """Show the types of a signature as people write them."""
    shown, returned = told[5:]
    if shown:
        shown = ANNOTATED.sub(r"\1", shown).replace("(<class 'Exception'>,)", "(Exception,)")
        shown = VARIABLE.sub(r"\1", OPTION_VALUES.sub("", shown))
        shown = shown.replace(": P.args", "").replace(": P.kwargs", "")
    if returned and TASK.fullmatch(returned):
        returned = "Task"
    return shown, returned


def _on_missing(site: Sphinx, environment: Any, node: Any, shown: Any) -> Any:
    """Lead an annotation to the public name of its class; a class that has none stays plain text."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or not node["reftarget"].startswith("taskmesh."):
        return None
    if name not in taskmesh.__all__:
        return shown
    domain, target = environment.get_domain("py"), f"taskmesh.{name}"
    return domain.resolve_xref(environment, node["refdoc"], site.builder, "obj", target, node, shown)


def setup(site: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the lists, and of what else pages and docstrings need."""
    from sphinx.pycode import ModuleAnalyzer  # tests read the lists without Sphinx

    analyzer = ModuleAnalyzer.for_module("taskmesh.function")
    analyzer.analyze()
    analyzer.overloads.clear()  # one signature each, that of all of them
    site.connect("source-read", _on_source_read)
    site.connect("autodoc-process-docstring", _on_docstring, priority=400)  # before napoleon
    site.connect("autodoc-process-signature", _on_signature)
    site.connect("missing-reference", _on_missing)
    return {"parallel_read_safe": True}
