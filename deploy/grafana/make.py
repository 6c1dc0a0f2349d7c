# SPDX-License-Identifier: Apache-2.0
"""Makes the dashboards beside it, fleet.json and node.json, of fleet.py and node.py:

    build/venv/bin/python deploy/grafana/make.py

They are for Grafana 10.1 and later. A test compares what lies there with what this makes."""

import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
from fleet import fleet  # noqa: E402
from node import node  # noqa: E402


def made() -> dict[str, str]:
    """The text of each dashboard by the name of its file."""
    return {f"{name}.json": json.dumps(page(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
            for name, page in (("fleet", fleet), ("node", node))}


if __name__ == "__main__":
    for name, text in made().items():
        (FOLDER / name).write_text(text)
        print(f"made {FOLDER / name}")
