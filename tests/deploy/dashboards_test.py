# SPDX-License-Identifier: Apache-2.0
"""Shows that the dashboards of deploy/grafana are what its script makes, that Grafana's own types read them, that each
panel has its place, and that what they ask for is there. tests/e2e/dashboards.py asks it of a live daemon."""

import itertools
import json
import re
import sys
import unittest

import watched
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

sys.path.insert(0, str(watched.DASHBOARDS))
import make  # noqa: E402
import panels  # noqa: E402

PAGES = {path.name: json.loads(path.read_text()) for path in sorted(watched.DASHBOARDS.glob("*.json"))}
OF_GRAFANA = {"__rate_interval", "__range"}  # variables that every dashboard has
SECTIONS_FIRST = "Failures and lost data"


def panels_of(page: dict) -> list[dict]:
    """All but the headings."""
    return [panel for panel in page["panels"] if panel["type"] != "row"]


def overlap(one: dict, other: dict) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    return (a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and
            a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"])


class Dashboards(unittest.TestCase):
    def test_they_are_what_the_script_makes(self):
        made = make.made()
        self.assertEqual(sorted(PAGES), sorted(made))
        for name, text in made.items():
            self.assertEqual((watched.DASHBOARDS / name).read_text(), text, f"{name}: run deploy/grafana/make.py")

    def test_grafanas_types_read_them(self):
        register_default_plugins()
        for name, page in PAGES.items():
            again = json.loads(json.dumps(Dashboard.from_json(page), cls=JSONEncoder))
            self.assertEqual(page, again, name)

    def test_failures_come_first(self):
        for name, page in PAGES.items():
            self.assertEqual(SECTIONS_FIRST, page["panels"][0]["title"], name)

    def test_every_panel_has_a_place_a_number_and_a_title_of_its_own(self):
        for name, page in PAGES.items():
            for key in ("id", "title"):
                values = [panel[key] for panel in page["panels"]]
                self.assertEqual(len(values), len(set(values)), f"{name}: {key}")
            for one, other in itertools.combinations(page["panels"], 2):
                self.assertFalse(overlap(one, other), f"{name}: '{one['title']}' lies over '{other['title']}'")
            for panel in page["panels"]:
                self.assertLessEqual(panel["gridPos"]["x"] + panel["gridPos"]["w"], panels.GRID_COLUMNS, panel["title"])

    def test_every_panel_says_what_it_shows(self):
        for page in PAGES.values():
            for panel in panels_of(page):
                self.assertTrue(panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"])

    def test_the_panels_name_what_there_is(self):
        for name, page in PAGES.items():
            self.assertTrue(watched.asked(page))
            for one in watched.asked(page):
                self.assertEqual(set(), watched.unknown(one.expression), f"{name}: {one.panel}")

    def test_the_panels_use_the_variables_that_there_are(self):
        for name, page in PAGES.items():
            there = {one["name"] for one in watched.variables(page)}
            used = {variable for one in watched.asked(page) for variable in re.findall(r"\$(\w+)", one.expression)}
            self.assertEqual(there, used - OF_GRAFANA, name)

    def test_links_lead_to_the_node_view(self):
        self.assertEqual(panels.NODE_UID, PAGES["node.json"]["uid"])

    def test_every_recording_rule_is_used(self):
        expressions = [one.expression for page in PAGES.values() for one in watched.asked(page)]
        expressions += [rule["expr"] for rule in watched.rules("alerts.yml")]
        used = set.union(*(watched.named(expression)[0] for expression in expressions))
        self.assertEqual(set(), watched.recorded() - used)


if __name__ == "__main__":
    unittest.main()
