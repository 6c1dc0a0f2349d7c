# SPDX-License-Identifier: Apache-2.0
"""Writes the corpora of tests/fuzz: seeds.py [--check]

Each target reads its input as a script of acts (the sources say how); here are scripts that reach what chance takes long
to find, and inputs that once failed. With --check nothing is written, and the exit status says whether the corpora are
what this file makes.
"""

import base64
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
MAX = 0xFFFFFFFFFFFFFFFF


def number(value: int) -> bytes:
    """As Input::number() takes it."""
    return bytes([7]) + struct.pack("<Q", value)


def catalog():
    """A catalog of one of twelve daemons, and one change to it."""
    for image in range(12):
        yield f"untouched-{image}", bytes([image])
        yield f"cut-{image}", bytes([image, 1]) + number(64 * 1024 + 64 * 1024 * 1024 + image * 4096)
    places = [(1, offset, "H") for offset in (0, 8, 12, 24, 32, 40, 44, 48, 56, 64, 72, 88)]
    places += [(2, offset, "H") for offset in (8, 12, 16, 20, 32)]
    places += [(3, offset, "H") for offset in (0, 8, 16)]
    places += [(4, offset, "H") for offset in (0, 20, 24, 32, 40, 48, 120, 128)]
    places += [(5, offset, "B") for offset in (0, 8, 16, 24, 32, 40, 48, 52, 56, 57, 58, 59, 60, 61)]
    places += [(6, offset, "B") for offset in (0, 8, 16, 20, 24, 25, 32, 40)]
    places += [(7, offset, "B") for offset in (0, 8, 12, 13, 14, 16, 48)]
    places += [(8, offset, "B") for offset in (0, 96)]
    single_bytes = {5: range(56, 62), 6: (24, 25)}
    for index, (where, offset, size) in enumerate(places):
        for value in (0, 1, 4096, MAX):
            act = bytes([where, 0, index % 4]) + struct.pack("<" + size, offset) + bytes([4 if offset in single_bytes.get(where, ()) else 3])
            yield f"change-{where}-{offset}-{value:x}", bytes([index % 12, 0]) + act + number(value)
    # One session's record, and one tensor's, put in the place of another's.
    yield "twice-session", bytes([0, 0, 4, 1, 0, 0, 0, 0, 4, 0, 0, 0, 0]) + struct.pack("<H", 279)
    yield "twice-tensor", bytes([0, 0, 5, 0, 1, 0, 0, 0, 0, 0]) + struct.pack("<H", 63)
    yield "failed-next-number-0", base64.b64decode(
        "DgkAAAAAAAAAAQAAAAAAAFVwdQAAAAAACwAAAQEAUDAAWwkwBgAAAAEAAAAEAAAAAAQAdQAAAAAAAAAeAAAe")
    yield "failed-torn-while-leased", base64.b64decode("/wAFAAE9BAcFAAUAAT0EB////wAFAAE9BAf/////////")


def submit(operation, count=0, mode=0, place=0, timeout=200, records=b"", field=None):
    """A request in the ring."""
    request = bytes([0, operation, mode, place, count, operation, timeout, 0, 0]) + records
    return request + (bytes([1]) if field is None else bytes([0, field[0]]) + number(field[1]))


def create(*sizes):
    """Tensors a, b, ... of these sizes."""
    records = b"".join(bytes([1]) + struct.pack("<I", size - 1) + bytes([0, 0, i, 0]) for i, size in enumerate(sizes))
    return submit(1, len(sizes), records=records)


def handles(count):
    """The first tensors."""
    return b"".join(bytes([slot, 0]) for slot in range(count))


def region():
    """A trainer's acts: requests, scribbles, and rings of the doorbell."""
    ring = bytes([11])
    made = create(65536, 4096, 1 << 20) + ring
    yield "requests", made + b"".join(
        submit(operation, 3, mode=mode, place=place, records=handles(3)) + ring
        for operation in range(2, 12) for mode in (0, 1) for place in (0, 1))
    for field in range(8):
        for value in (0, MAX, 1 << 63, 8 << 20):
            yield f"field-{field}-{value:x}", made + submit(3, 1, 1, 0, records=handles(1), field=(field, value)) + ring
    for index in range(6):
        for value in (1, 1024, 1025, 0xFFFFFFFF):
            yield f"index-{index}-{value:x}", made + bytes([2, index]) + number(value) + ring
    for flags in range(0, 128, 9):
        word = bytes([4, 0, flags, 1, 1, 1])
        yield f"word-{flags}", (made + submit(3, 2, 2, 0, records=handles(2)) + ring + word
                                + submit(4, 2, 0, 1, records=handles(2)) + ring + submit(2, 2, records=handles(2)) + ring)
    held = bytes([9, 1]) + made + submit(3, 3, 2, 1, records=handles(3)) + ring
    for result in (0, 1):
        yield f"held-back-{result}", held + bytes([10, 1, result]) * 8 + submit(2, 3, records=handles(3)) + ring + bytes([9, 0])
    yield "logs", made + bytes([6, 0]) + number(5000) + struct.pack("<I", 128) + bytes([63]) + bytes(range(64)) + ring


def message():
    """Packets: whole ones, and ones with something wrong."""
    hello = bytes([5, 0]) + struct.pack("<QII", 10**9, 1, 2) + struct.pack("<IIQ", 0, 0, 1 << 20) * 9 + b"rank 3".ljust(64, b"\0")
    yield "hello", hello + bytes([0])
    yield "label", hello[:-64] + bytes(range(192, 256)) + bytes([0])
    yield "guarantees", bytes([5, 0]) + struct.pack("<QII", MAX, 0, 10)
    for which, size in ((1, 24), (2, 0), (3, 32)):
        yield f"type-{which}", bytes([5, which]) + bytes(size) + bytes([1, 16]) + bytes(range(16))
    for kind in (1, 2, 3, 4):
        yield f"header-{kind}", bytes([kind, 0]) + number(99)
    yield "short", bytes([0]) + struct.pack("<H", 5) + b"TRRC\0"
    yield "long", bytes([0]) + struct.pack("<H", 1999) + bytes(1999)


def client():
    """What a daemon might say: messages, segments, regions, completions."""
    for which in range(5):
        yield f"message-{which}", bytes([0, which, 1, 1, 1]) + bytes(range(200))
        yield f"message-cut-{which}", bytes([0, which, 0]) + struct.pack("<H", 30)
    for value in (0, 1, (1 << 47) - 1, (1 << 47) + 1, MAX):
        yield f"range-{value:x}", bytes([1, 0, 0]) + number(value) + bytes([1, 0, 1, 1, 0]) * 8
    yield "segments", bytes([1, 1, 1, 4]) + bytes([1, 0, 1, 2, 0, 1, 1, 1, 1, 1, 0]) * 4
    yield "segments-overflow", bytes([1, 1, 1, 4]) + (bytes([0]) + number(MAX - (2 << 20) + 1) + bytes([1, 1, 0])) * 2
    longer, beyond = (bytes([1, at, 0]) + number(size) + bytes([0]) for at, size in ((0, 6 << 21), (5, 4096)))
    yield "failed-segment-beyond-its-memory", bytes([1, 1, 1, 7]) + longer + beyond
    for slots in (0, 8, 0xFFFFFFFF):
        yield f"region-{slots:x}", bytes([2]) + number(slots) + bytes([0, 0, 1])
    asked = bytes([3, 0, 0, 0, 1, 1])
    yield "answers", asked + bytes([1, 1, 0, 1, 0]) + number(0)
    yield "answer-to-nobody", asked + bytes([1, 0]) + number(MAX) + bytes([0]) + number(0)
    yield "answer-beyond-the-table", asked + bytes([3, 16]) + bytes([0xFF] * 16) + bytes([0]) + bytes([1, 1, 0, 0]) + number(0)
    yield "answer-of-any-length", asked + bytes([1, 1, 0, 1, 5]) + number(MAX)
    yield "tail", asked + bytes([2, 0]) + number(5000)


def config():
    """Configurations, right and wrong."""
    yield "every-key", b"""metrics_address = "127.0.0.1:9464"
log_level = "info"
strict = false
[sockets]
data = "/run/terrace/data.sock"
grpc = "/run/terrace/terraced.sock"
admin = "/run/terrace/admin.sock"
[limits]
sessions_max = 16
tensors_per_session_max = 64
connections_max = 8
requests_queued_max = 9
request_timeout_ms = 10
session_idle_timeout_ms = 11
stop_timeout_ms = 12
[[tier]]
kind = "device"
device = "emulated"
capacity = "1GiB"
[[tier]]
kind = "memory"
capacity = "25%"
high_mark = 0.8
numa_node = 0
huge_pages = "auto"
[[tier]]
kind = "block"
paths = ["/var/lib/terrace/block"]
capacity = "80%"
write_budget = "1TB/day"
[[tenant]]
name = "a"
data_socket = "/run/terrace/a.sock"
grpc_socket = "/run/terrace/a.grpc"
uids = [1000]
quota = "1TiB"
"""
    tier = '[[tier]]\nkind = "{}"\ncapacity = "{}"\n'
    for index, (kind, capacity) in enumerate([("memory", "50%"), ("memory", "18446744073709551615"), ("device", "1e300%"),
                                              ("device", "8GiB"), ("memory", "-1"), ("block", "9999999TiB")]):
        yield f"tier-{index}", tier.format(kind, capacity).encode()
    yield "gpus", b'[[tier]]\nkind = "device"\ndevice = "cuda:all"\ncapacity = "90%"\n' + tier.format("memory", "50%").encode()
    yield "ordinal", b'[[tier]]\nkind = "device"\ndevice = "cuda:99999999999999999999"\ncapacity = "1%"\n'
    yield "tenants", b'[[tenant]]\nname = "a"\nuids = [0, 4294967295]\nquota = "1TiB"\ndata_socket = "/run/a.sock"\n' * 2
    yield "limits", b"[limits]\nsessions_max = 9223372036854775807\nconnections_max = -1\n"
    yield "address", b'metrics_address = "[::1]:99999"\nstrict = 1\nlog_level = "loud"\n'
    yield "deep", b"a = " + b"[" * 600
    yield "failed-letter-outside-ascii", b"\xef\xbb\xbd"
    yield "failed-nul", b"[\0"
    yield "failed-table-without-name", b"\n[\n\n"


def main() -> int:
    wrong = []
    for target in (catalog, region, message, client, config):
        folder = HERE / "corpus" / target.__name__
        folder.mkdir(parents=True, exist_ok=True)
        made = dict(target())
        if "--check" in sys.argv:
            wrong += [f"{path}: not of this file's making" for path in folder.iterdir() if path.name not in made]
            wrong += [f"{folder / name}: another" for name, data in made.items()
                      if not (folder / name).exists() or (folder / name).read_bytes() != data]
            continue
        for path in folder.iterdir():
            path.unlink()
        for name, data in made.items():
            (folder / name).write_bytes(data)
    print("\n".join(wrong) or "the corpora are what they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
