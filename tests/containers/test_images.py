"""The image: small, without tools that nobody needs at run time, and easy to build upon."""

import json
import re

import pytest

from tests.containers.box import BASE, IMAGE, OFFLINE, ROOT, WHEELS, podman
from tests.containers.box import build as build_image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT = 150 << 20
"""Bytes over the base image."""


def inside(image: str, *line: str, check: bool = True) -> str:
    return podman(
        "run", "--rm", "--network=none", "--entrypoint", line[0], image, *line[1:], check=check
    ).stdout


def test_it_is_small(image):
    sizes = [int(podman("image", "inspect", "--format={{.Size}}", name).stdout) for name in (image, BASE)]

    assert 0 < sizes[0] - sizes[1] < LIMIT


def test_it_has_neither_pip_nor_a_build_tool(image):
    probe = (
        "import importlib.util as u; print([m for m in ('pip', 'setuptools', 'hatchling') if u.find_spec(m)])"
    )

    assert inside(image, "/opt/taskmesh/bin/python", "-c", probe).strip() == "[]"


def test_it_starts_as_an_unprivileged_worker(image):
    config = json.loads(podman("image", "inspect", image).stdout)[0]["Config"]

    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["taskmesh"]
    assert config["Cmd"] == ["worker"]
    assert config["WorkingDir"] == "/tasks"


def test_its_commands_need_no_shell(image):
    assert "--address" in podman("run", "--rm", "--network=none", image, "worker", "--help").stdout


@pytest.mark.parametrize(
    ("pool", "module", "call", "expected"),
    [
        ("cpu", "cpu_tasks", "primes_below(1000)", "168"),
        ("cpu", "cpu_tasks", "len(pack(bytes(100_000))) < 1000", "True"),
        ("spark", "taskmesh.spark.steps.step", "__import__('pyarrow').array([1, 2]).sum()", "3"),
        ("gpu", "gpu_tasks", "round(sum(x * x for x in embed([[1.0, 2.0]])[0]), 6)", "1.0"),
    ],
)
def test_a_pool_s_image_is_built_upon_it(image, pool, module, call, expected):
    folder = f"workers/pools/{pool}"
    packages = "pyarrow" if pool == "spark" else "numpy"
    arguments = {"IMAGE": IMAGE, "PACKAGES": packages, "PIP_OPTIONS": WHEELS.partition("=")[2]}
    if pool == "gpu":
        arguments["CHECK"] = "import numpy"
    name = build_image(f"{IMAGE}-{pool}", f"{folder}/Containerfile", folder, arguments)

    printed = inside(name, "python", "-c", f"from {module} import *; print({call})")

    assert printed.strip() == expected
    assert OFFLINE[:2] == ("--network", "none")


def test_an_executor_s_image_is_the_pool_s_with_what_apache_s_has(image, tmp_path):
    """Apache's image is not to be had without a network: files with its names stand for it."""
    for name in ("opt/spark/work-dir/x", "opt/java/openjdk/release", "opt/decom.sh", "usr/bin/tini"):
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    entrypoint = tmp_path / "root/opt/entrypoint.sh"
    entrypoint.write_text('#!/bin/sh\nexec "$@"\n')
    entrypoint.chmod(0o755)
    (tmp_path / "Containerfile").write_text("FROM scratch\nCOPY root/ /\n")
    podman("build", "-q", "-t", f"{IMAGE}-apache", str(tmp_path))
    pools = {"IMAGE": IMAGE, "PACKAGES": "pyarrow", "PIP_OPTIONS": WHEELS.partition("=")[2]}
    build_image(f"{IMAGE}-spark", "workers/pools/spark/Containerfile", "workers/pools/spark", pools)
    given = {"IMAGE": f"{IMAGE}-spark", "SPARK": f"{IMAGE}-apache"}
    name = build_image(f"{IMAGE}-executor", "workers/spark/Containerfile", "workers/spark", given)

    probe = "import os, pwd, pyarrow; print(pwd.getpwuid(os.getuid()).pw_name, *os.listdir('/jobs'))"
    python = "/opt/taskmesh/bin/python"
    found = podman("run", "--rm", "--network=none", "--read-only", name, python, "-c", probe).stdout
    assert found.split() == ["spark", "job.py"]
    config = json.loads(podman("image", "inspect", name).stdout)[0]["Config"]
    assert f"PYSPARK_PYTHON={python}" in config["Env"]
    assert config["User"] == "10001:10001"
    assert not config.get("Cmd")  # Kubernetes says: driver, or executor


def test_the_gpu_image_has_cuda_s_libraries_and_its_build_loads_them():
    """Without them `import cupy` succeeds, and each task fails.

    Read, not built: CUDA's libraries are 3 GB. NumPy stands in for CuPy where the image is built, above.
    """
    text = (ROOT / "workers/pools/gpu/Containerfile").read_text()
    arguments = dict(re.findall(r'^ARG (\w+)="(.*)"$', text, re.MULTILINE))

    assert re.fullmatch(r"cupy-cuda12x\[ctk\]==[\d.]+", arguments["PACKAGES"])
    libraries = set(arguments["CHECK"].removeprefix("from cupy.cuda import ").split(", "))
    assert libraries == {"cublas", "cufft", "curand", "cusolver", "cusparse", "nvrtc"}
    assert 'python -c "${CHECK}"' in text
