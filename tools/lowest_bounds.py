"""Print pip constraints with the lowest version of every dependency that pyproject.toml allows."""

import re
import sys
import tomllib
from pathlib import Path

BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)")


def lowest(path: Path) -> list[str]:
    """Return `name==version` for every requirement with a lower bound, the lowest of each."""
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    used = (*project["dependencies"], *extras.get("files", ()))
    bounds = sorted({match.groups() for line in used if (match := BOUND.match(line))})
    return [f"{name}=={version}" for name, version in bounds]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest(Path(sys.argv[1]))) + "\n")
