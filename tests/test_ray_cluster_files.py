"""Example files of docs/cluster.md: Ray's schema, and options of the batch script."""

import json
import subprocess
from pathlib import Path

import pytest

from command_line import invoke

FOLDER = Path(__file__).parent.parent / "examples" / "cluster"


def test_cluster_file_matches_the_schema_of_ray():
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'msdscore[ray]')")
    jsonschema, yaml = pytest.importorskip("jsonschema"), pytest.importorskip("yaml")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    found = yaml.safe_load((FOLDER / "aws-spot.yaml").read_text())
    jsonschema.validate(found, schema)
    assert found["head_node_type"] in found["available_node_types"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found | {"max_worker": 1}, schema)


def test_batch_script_uses_existing_options():
    script = FOLDER / "score.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    command = script.read_text().partition("msdscore score ")[2].split()
    known = invoke("score", "--help", env={"COLUMNS": "200", "TERM": "dumb"}).output
    options = [word for word in command if word.startswith("--")]
    assert len(options) >= 5
    assert all(option in known for option in options)
