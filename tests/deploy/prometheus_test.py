# SPDX-License-Identifier: Apache-2.0
"""Shows that Prometheus accepts deploy/prometheus, and that each alert fires on its fault and not on a healthy node."""

import pathlib
import subprocess
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy/prometheus"


def promtool(*arguments, folder=FOLDER):
    return subprocess.run(["promtool", *arguments], cwd=folder, text=True, capture_output=True, check=False)


class Prometheus(unittest.TestCase):
    def test_the_scrape_configuration_is_accepted(self):
        result = promtool("check", "config", "scrape.yml")
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)
        self.assertIn("127.0.0.1:9464", (FOLDER / "scrape.yml").read_text())

    def test_each_alert_fires_on_its_fault_alone(self):
        result = promtool("test", "rules", "alerts_test.yml")
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)

    def test_every_alert_is_tested(self):
        alerts = [line.split()[-1] for line in (FOLDER / "alerts.yml").read_text().splitlines() if "- alert:" in line]
        tests = (FOLDER / "alerts_test.yml").read_text()
        self.assertTrue(alerts)
        for alert in alerts:
            self.assertEqual(2, tests.count(f"alertname: {alert}"), f"{alert}: one test that it fires, one that it does not")

    def test_a_broken_alert_would_have_been_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("alerts.yml", "alerts_test.yml"):
                text = (FOLDER / name).read_text()
                pathlib.Path(folder, name).write_text(text.replace("> 0.95", "> 0.99"))
            self.assertNotEqual(0, promtool("test", "rules", "alerts_test.yml", folder=folder).returncode)


if __name__ == "__main__":
    unittest.main()
