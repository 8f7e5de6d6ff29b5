"""The chart's README is the one that is made from values.yaml."""

import shutil
import subprocess

from tests.helm.rendering import CHART, node, npm_tool


def test_the_readme_is_up_to_date(tmp_path):
    program = npm_tool("readme-generator")
    made = tmp_path / "README.md"
    shutil.copy(CHART / "README.md", made)

    outcome = subprocess.run(
        [node(), program, "--values", str(CHART / "values.yaml"), "--readme", str(made)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert made.read_text() == (CHART / "README.md").read_text(), "run `make chart-readme`"
