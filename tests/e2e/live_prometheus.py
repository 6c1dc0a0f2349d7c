# SPDX-License-Identifier: Apache-2.0
"""Debian's own Prometheus over a live daemon, with deploy/prometheus as it is shipped, but for the daemon's address and a
shorter interval; what its API answers; and a load for the daemon that it watches."""

import json
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from grpc_fixtures import BLOCK, DEVICE, HOST, LIMIT_SECONDS, MIB, ROOT

SHIPPED = ROOT / "deploy/prometheus"


def needs(program: str):
    return pytest.mark.skipif(shutil.which(program) is None,
                              reason=f"{program} is not installed (Debian package prometheus)")


def work(session, tensors: list[int]) -> None:
    """One step of load through every tier."""
    for tensor in tensors:
        session.write(tensor, bytes([tensor & 255]) * MIB)
        session.call("SwapOut", place=BLOCK, tensors=[tensor])
        session.read(tensor)
        session.read(tensor)
        session.call("SwapIn", place=DEVICE, tensors=[tensor])
        session.call("SwapOut", place=HOST, tensors=[tensor])
    session.call("MarkStep")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """Scrapes one daemon every second, from `folder`, until the block that it heads ends."""

    def __init__(self, folder: pathlib.Path, metrics_address: str):
        config = (SHIPPED / "scrape.yml").read_text()
        assert "127.0.0.1:9464" in config and "5s" in config
        for rules in ("records.yml", "alerts.yml"):
            shutil.copy(SHIPPED / rules, folder)
        config = config.replace("127.0.0.1:9464", metrics_address).replace("15s", "1s").replace("5s", "1s")
        (folder / "scrape.yml").write_text(config)
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/scrape.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.address}"], stdout=log, stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_raised) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_SECONDS)

    def ask(self, path: str, **parameters) -> list:
        """The data that its API answers with; nothing while it does not answer yet."""
        url = f"http://{self.address}/api/v1/{path}?" + urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return []
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:  # not there yet
            assert self.process.poll() is None, self.log.read_text()
            return []

    def query(self, expression: str) -> list:
        """The series of an expression now, each with its `metric` and one `value`."""
        data = self.ask("query", query=expression)
        return data["result"] if data else []

    def query_range(self, expression: str, seconds: int) -> list:
        """The series of an expression over the last seconds, each with its `metric` and `values`."""
        now = time.time()
        data = self.ask("query_range", query=expression, start=now - seconds, end=now, step=1)
        return data["result"] if data else []
