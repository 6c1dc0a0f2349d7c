# SPDX-License-Identifier: Apache-2.0
"""What is said of rows: each as it comes, all of them at the end, a picture; and rows of a run before."""

import json
import pathlib
from collections.abc import Sequence
from typing import TextIO

from rows import Missing, Row, last_line, to_text


class Report:
    """The rows so far, in the order of `names`. Each is printed as it comes."""

    def __init__(self, names: Sequence[str], sizes: str, out: TextIO, objects: TextIO | None = None):
        """sizes: by which they are measured, train_peers.FULL_NAME or "quick". out: for the table. objects: for an object
        a row."""
        self.rows: list[Row | Missing] = []
        self._names = names
        self._sizes = sizes
        self._out = out
        self._objects = objects

    def has(self, name: str) -> bool:
        """Whether there is a row of this name."""
        return any(row.bench == name for row in self.rows)

    def add(self, row: Row | Missing) -> None:
        """Prints a row."""
        self.rows.append(row)
        self.rows.sort(key=lambda one: self._names.index(one.bench))
        print("\n".join(to_text(row)), file=self._out, flush=True)
        if self._objects is not None:
            print(json.dumps(row.to_json() | {"sizes": self._sizes}), file=self._objects, flush=True)

    def end(self, plot: pathlib.Path | None) -> str:
        """Prints all rows once more, draws them if that is wanted, and gives the last line."""
        print("\nall rows:", file=self._out)
        for row in self.rows:
            print("\n".join(to_text(row)), file=self._out)
        if plot is not None:
            from picture import draw

            draw(plot, self.rows)
            print(f"drawn: {plot}", file=self._out)
        self._out.flush()
        return last_line(self.rows)


def measured_before(path: pathlib.Path, sizes: str) -> list[Row]:
    """The rows that a run with --json has written into a file; those that were missing, and a line that was cut short
    as the run was ended, are left out. ValueError for rows of other sizes."""
    found: dict[str, Row] = {}
    for line in path.read_text().splitlines():
        try:
            said = json.loads(line)
        except json.JSONDecodeError:
            continue  # the table and the last line may be in the same file
        if said.get("sizes") != sizes:
            raise ValueError(f"{path} has rows of the sizes '{said.get('sizes')}', and this run measures '{sizes}': "
                             "resume with the same --quick, or without it")
        if said["value"] is not None:
            found[said["bench"]] = Row.from_json(said)
    return list(found.values())
