#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NumPy on a matrix that is larger than its memory: the rows of A come and go through Terrace, a tile at a time, while
power iteration finds A's largest singular value. Needs nothing beyond terrace and numpy.

    python3 client/python/examples/numpy_out_of_core.py
"""

import argparse
import pathlib

import numpy

import terrace


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="folder on a disk")
    parser.add_argument("--rows", type=int, default=8192, help="of the matrix, in tiles of 512 (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of the iteration (%(default)s)")
    arguments = parser.parse_args()
    columns, tile_rows = 1024, 512
    random = numpy.random.default_rng(0)
    with terrace.serve("16MiB", block=f"{arguments.block}:256MiB", metrics=False) as client:
        tiles = client.create_many([(f"rows{first}", (tile_rows, columns), "float32")
                                    for first in range(0, arguments.rows, tile_rows)])
        for tile in tiles:
            with tile.overwrite() as lease:  # nothing old is fetched
                random.standard_normal(out=lease.numpy(), dtype="float32")
        direction = numpy.ones(columns, "float32")
        for _ in range(arguments.rounds):
            direction /= numpy.linalg.norm(direction)
            product = numpy.zeros(columns, "float32")
            for at, tile in enumerate(tiles):
                client.prefetch(tiles[at + 1:at + 3])  # the disk reads while we multiply
                with tile.read() as lease:
                    rows = numpy.from_dlpack(lease)  # the leased memory itself, read-only, as lease.numpy() is
                    product += rows.T @ (rows @ direction)
                    del rows  # an array that is left would keep the lease
            direction = product
        print(f"largest singular value of {len(tiles) * tile_rows} x {columns}: {numpy.linalg.norm(direction) ** 0.5:.3f}")
        assert client.leased_bytes == 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
