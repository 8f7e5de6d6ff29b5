"""Files for the repository's host and tools: workflows, forms, hooks, the container for development."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.deploy.schemas import check_schema
from tests.harness.program import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = {*re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)}
FILES = set(re.findall(r"^[A-Z]+ +:= (\.venv/\S+)$", MAKEFILE, re.MULTILINE))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
    ],
)
@pytest.mark.usefixtures("processes")
def test_files_are_what_their_schemas_say(schema: str, files: list[Any]) -> None:
    check_schema(schema, *files)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_targets_of_a_workflow_exist(path: Any) -> None:
    assert targets_of(yaml.safe_load(path.read_text(encoding="utf-8"))) - TARGETS == set()


def test_the_workflows_leave_out_no_part_but_those_that_build_containers() -> None:
    called = targets_of(yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text(encoding="utf-8")))
    parts = {
        target: set(needed.split())
        for target, needed in re.findall(
            r"^(test|test-all|check): ([a-z -]+?)(?: *##.*)?$", MAKEFILE, re.MULTILINE
        )
    }

    assert parts["check"] == {"lint", "types", "test", "test-all"}
    wanted = {"lint", "types", *parts["test"], *parts["test-all"]}
    assert wanted - called == {"test-helm"}


def targets_of(workflow: dict[str, Any]) -> set[str]:
    """The targets of make that the jobs of a workflow call."""
    found = set()
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        ways = {*matrix.get("target", ()), *(each["target"] for each in matrix.get("include", ()))}
        for step in job["steps"]:
            said = re.search(r"\bmake (\$\{\{ matrix\.target \}\}|[a-z-]+)$", step.get("run", ""))
            if said:
                found |= ways if said[1].startswith("$") else {said[1]}
    assert found
    return found


def test_hooks_are_the_parts_of_make_lint() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    lint = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0].replace("$(BIN)", ".venv/bin")

    assert [hook["entry"].removesuffix(" --fix") for hook in local["hooks"]] == re.findall(
        r"\t(.+?)(?: --check)?(?: \.)?$", lint, re.MULTILINE
    )


def test_the_container_for_development_calls_a_target() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    verb, target = container["postCreateCommand"].split()

    assert (verb, target in FILES) == ("make", True)


def test_the_repository_has_one_address() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    home = urls["Repository"]
    pages = [*ROOT.glob("*.md"), *GITHUB.rglob("*.*"), *(ROOT / "deploy").rglob("*.*")]
    named = {
        found
        for page in pages
        for found in re.findall(r"https://github\.com/[\w-]+/[\w-]+", page.read_text(encoding="utf-8"))
    }

    assert named == {home}
    assert [url for url in urls.values() if not url.startswith(home)] == []
