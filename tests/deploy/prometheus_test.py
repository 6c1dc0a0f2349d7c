# SPDX-License-Identifier: Apache-2.0
"""Shows that Prometheus accepts deploy/prometheus, that each record comes to what it says, that each alert fires on its
fault and not on a healthy node, that each has a severity and a section of the runbook; and that rules name what is
there."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import watched
import yaml

sys.path.insert(0, str(watched.ROOT / "tests/style"))
import pages  # noqa: E402

FOLDER = watched.RULES
FILES = ("records.yml", "alerts.yml")
SEVERITIES = {"critical", "warning"}


def promtool(*arguments, folder=FOLDER):
    return subprocess.run(["promtool", *arguments], cwd=folder, text=True, capture_output=True, check=False)


def has_runbook(alert: dict) -> bool:
    """Whether an alert names a section of a page of ours that is there."""
    page, _, anchor = alert["annotations"].get("runbook", "").partition("#")
    file = watched.ROOT / page
    return bool(anchor) and file.is_file() and anchor in pages.anchors(str(file))


def cases_of(alert: str) -> list[dict]:
    """The unit tests of an alert."""
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    return [case for test in tests for case in test["alert_rule_test"] if case["alertname"] == alert]


class Prometheus(unittest.TestCase):
    def test_the_scrape_configuration_is_accepted(self):
        result = promtool("check", "config", "scrape.yml")
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)
        text = (FOLDER / "scrape.yml").read_text()
        self.assertIn("127.0.0.1:9464", text)
        self.assertEqual(list(FILES), yaml.safe_load(text)["rule_files"])

    def test_the_rules_are_accepted(self):
        result = promtool("check", "rules", *FILES)
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)

    def test_each_alert_fires_on_its_fault_alone(self):
        result = promtool("test", "rules", "alerts_test.yml")
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)

    def test_each_record_comes_to_what_it_says(self):
        result = promtool("test", "rules", "records_test.yml")
        self.assertEqual(0, result.returncode, result.stdout + result.stderr)
        tests = yaml.safe_load((FOLDER / "records_test.yml").read_text())["tests"]
        tested = set.union(*(watched.named(case["expr"])[0] for test in tests for case in test["promql_expr_test"]))
        self.assertEqual(set(), watched.recorded() - tested)

    def test_every_alert_is_tested(self):
        self.assertTrue(watched.rules("alerts.yml"))
        for rule in watched.rules("alerts.yml"):
            fires = [bool(case["exp_alerts"]) for case in cases_of(rule["alert"])]
            self.assertEqual([False, True], sorted(fires), f"{rule['alert']}: one test that it fires, one that it does not")

    def test_every_alert_has_a_severity_and_a_runbook(self):
        for rule in watched.rules("alerts.yml"):
            self.assertIn(rule["labels"]["severity"], SEVERITIES, rule["alert"])
            self.assertTrue(has_runbook(rule), f"{rule['alert']}: annotations.runbook names no section of a page: PAGE#ANCHOR")

    def test_every_section_of_the_runbook_has_its_alert(self):
        alerts = {rule["alert"] for rule in watched.rules("alerts.yml")}
        page = (watched.ROOT / "docs/guides/runbook.md").read_text()
        sections = {line[3:] for line in page.splitlines() if line.startswith("## Terrace")}
        self.assertEqual(set(), sections - alerts)

    def test_the_rules_name_what_there_is(self):
        for rule in watched.rules("records.yml") + watched.rules("alerts.yml"):
            self.assertEqual(set(), watched.unknown(rule["expr"]), rule.get("alert") or rule["record"])

    def test_a_name_that_nothing_has_would_have_been_found(self):
        self.assertEqual({"terrace_tier_usd_bytes"}, watched.unknown("rate(terrace_tier_usd_bytes[5m]) > 0"))
        self.assertEqual({"terrace_acquire_wait_seconds"}, watched.unknown("terrace_acquire_wait_seconds"))  # a histogram
        self.assertEqual({"teir"}, watched.unknown('sum by (teir) (terrace_retired_bytes{tier="x"}) or vector(0)'))
        self.assertEqual({"teir"}, watched.unknown('terrace_retired_bytes{teir="memory"}'))
        self.assertEqual({"a:b:c"}, watched.unknown("a:b:c > 2 * terrace_up"))

    def test_an_alert_without_a_runbook_would_have_been_found(self):
        self.assertFalse(has_runbook({"annotations": {}}))
        self.assertFalse(has_runbook({"annotations": {"runbook": "docs/guides/runbook.md"}}))
        self.assertFalse(has_runbook({"annotations": {"runbook": "docs/guides/runbook.md#terracenothing"}}))

    def test_a_broken_alert_would_have_been_found(self):
        for broken in (("> 0.95", "> 0.99"), ("> 2 * avg", "> 20 * avg"), ("outcome=\"late\"", "outcome=\"wasted\"")):
            with tempfile.TemporaryDirectory() as folder:
                shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
                for name in FILES:
                    file = pathlib.Path(folder, name)
                    file.write_text(file.read_text().replace(*broken))
                self.assertNotEqual(0, promtool("test", "rules", "alerts_test.yml", folder=folder).returncode, broken)


if __name__ == "__main__":
    unittest.main()
