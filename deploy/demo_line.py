# SPDX-License-Identifier: Apache-2.0
"""Prints the demo's line from the numbers of its training: demo_line.py RESULT.json EXIT_STATUS

The line says ok only if the training ended well, the losses were equal, bytes went to the block tier and came back, and
no checksum failed. The exit status says the same.
"""

import json
import pathlib
import sys


def line(text: str | None, status: int) -> tuple[str, bool]:
    """The line for what the training wrote (None: nothing) and its exit status, and whether it is a success."""
    if text is None:
        return f"demo: FAILED the training ended with status {status} and without results", False
    result = json.loads(text)
    numbers = (f"steps={result['steps']} losses_equal={'true' if result['losses_equal'] is True else 'false'} "
               f"block_read_bytes={int(result['block_read_bytes'])} block_write_bytes={int(result['block_write_bytes'])} "
               f"checksum_failures={int(result['checksum_failures'])} overhead={float(result['overhead']):.2f}")
    good = (status == 0 and result["steps"] > 0 and result["losses_equal"] is True and result["block_read_bytes"] > 0
            and result["block_write_bytes"] > 0 and result["checksum_failures"] == 0)
    return f"demo: {'ok' if good else 'FAILED'} {numbers}", good


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    text, good = line(path.read_text() if path.exists() else None, int(sys.argv[2]))
    print(text)
    sys.exit(0 if good else 1)
