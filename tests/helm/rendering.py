"""The chart rendered by Helm 3 (its command) and Helm 4 (its library), as parsed objects."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.requirement import require

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "taskmesh"
TOOLS = Path(sys.prefix) / "helm"
NAMESPACE, RELEASE = "prod", "mesh"
MINIMAL = {"keys": {"existingSecret": "mesh-keys"}, "fullnameOverride": "m"}
Values = dict[str, Any]
Object = dict[str, Any]


def yaml() -> Any:
    """PyYAML, or a skip."""
    return _module("yaml")


def helm4() -> Any:
    """Helm 4's library, or a skip."""
    return _module("helm_python")


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return require(None, f"the Python package {name}: `make test-helm` installs it")


def npm_tool(name: str) -> str:
    """The path of a program that npm has installed, or a skip."""
    found = TOOLS / "node_modules" / ".bin" / name
    require(found.exists(), f"{name}: `make test-helm` installs it where npm is (apt install npm)")
    return str(found)


def helm3(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Helm 3's command."""
    return subprocess.run(
        [npm_tool("helm"), *arguments], input=given, capture_output=True, text=True, timeout=30, check=False
    )


def template(values: Values, version: str = "1.31") -> subprocess.CompletedProcess[str]:
    """`helm template` of Helm 3, for a version of Kubernetes; its own default is 1.25."""
    line = ("template", RELEASE, str(CHART), "-n", NAMESPACE, "-f", "-", "--kube-version", version)
    return helm3(*line, given=json.dumps(values))


@cache
def chart() -> Any:
    """The chart, loaded by Helm 4."""
    return helm4().Chart.load(CHART)


def rendered(values: Values) -> list[Object]:
    """The objects that Helm 4 makes of the values, checked against the schema first as an install does."""
    chart().validate_schema(values)
    files = chart().render(values, name=RELEASE, namespace=NAMESPACE)
    return objects(text for path, text in sorted(files.items()) if not path.endswith("NOTES.txt"))


def objects(texts: Iterable[str]) -> list[Object]:
    """The objects of YAML streams, in an order of their own."""
    loader = getattr(yaml(), "CSafeLoader", yaml().SafeLoader)
    found = [part for text in texts for part in yaml().load_all(text, Loader=loader) if part]
    return sorted(found, key=name_of)


def name_of(found: Object) -> str:
    """Kind/name."""
    return f"{found['kind']}/{found['metadata']['name']}"


def laid_over(under: Values, over: Values) -> Values:
    """One tree of values over another."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
        )
    return merged


def tree(path: str, value: object) -> Values:
    """{"a": {"b": value}} for a.b."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def value_files() -> list[Path]:
    """The chart's ci values, and the examples for users."""
    found = [
        *sorted((CHART / "ci").glob("*.yaml")),
        *sorted((ROOT / "helm" / "examples").glob("*.yaml")),
        *sorted((ROOT / "workers" / "pools").glob("*/values.yaml")),
    ]
    assert found
    return found


def values_of(file: Path) -> Values:
    """A file of values."""
    read: Values = yaml().safe_load(file.read_text())
    return read


def label(file: Path) -> str:
    """A test's name for a file of values."""
    return f"{file.parent.name}-{file.stem}"


def node() -> str:
    """The program node, or a skip."""
    found = shutil.which("node")
    require(found, "node (apt install nodejs)")
    return str(found)


def pod_specs(found: Iterable[Object]) -> dict[str, Object]:
    """The pod of every object that has one, by the object's name."""
    specs = {}
    for each in found:
        if each["kind"] == "Pod":
            specs[name_of(each)] = each["spec"]
        elif "template" in each.get("spec", {}):
            specs[name_of(each)] = each["spec"]["template"]["spec"]
    return specs
