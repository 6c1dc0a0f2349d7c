# SPDX-License-Identifier: Apache-2.0
"""Shows that systemd accepts deploy/systemd: the unit as it verifies it, the user as it makes it."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SYSTEMD = pathlib.Path(__file__).resolve().parents[2] / "deploy/systemd"
BUILD = pathlib.Path(os.environ["TERRACE_BUILD"])


class Service(unittest.TestCase):
    def verify(self, replace=("", "")):
        """What systemd-analyze says about the unit, with the built daemon in the place of the installed one."""
        daemon = BUILD / "terraced"
        self.assertTrue(os.access(daemon, os.X_OK), f"{daemon} is not built")
        text = (SYSTEMD / "terraced.service").read_text()
        self.assertIn("ExecStart=/usr/bin/terraced --config", text)
        text = text.replace("ExecStart=/usr/bin/terraced", f"ExecStart={daemon}").replace(*replace)
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder, "terraced.service")
            unit.write_text(text)
            result = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], text=True, capture_output=True,
                                    check=False)
        ours = [line for line in result.stderr.splitlines() if "terraced" in line]
        return result.returncode, ours

    def test_systemd_accepts_the_unit(self):
        self.assertEqual((0, []), self.verify())

    def test_systemd_would_have_named_a_mistake(self):
        _, said = self.verify(replace=("WatchdogSec=", "WatchDogSeconds="))
        self.assertIn("WatchDogSeconds", "\n".join(said))

    def test_the_unit_never_ends_in_failed(self):
        lines = (SYSTEMD / "terraced.service").read_text().splitlines()
        for needed in ("Type=notify", "NotifyAccess=main", "WatchdogSec=30", "Restart=always", "StartLimitIntervalSec=0",
                       "LimitMEMLOCK=infinity"):
            self.assertIn(needed, lines)
        for harmful in ("RestartPreventExitStatus", "SuccessExitStatus", "StartLimitBurst", "StartLimitAction"):
            self.assertFalse([line for line in lines if line.startswith(harmful)])

    def test_systemd_keeps_what_the_daemon_thinks_it_keeps(self):
        text = (SYSTEMD / "terraced.service").read_text()
        kept = re.findall(r"(?m)^FileDescriptorStoreMax=(\d+)$", text)
        told = re.findall(r"(?m)^Environment=FDSTORE=(\d+)$", text)
        self.assertEqual(1, len(kept))
        self.assertEqual(kept, told)
        # What passes them on is one string of the environment: with names of 7 bytes it has no room for more.
        self.assertLessEqual(int(kept[0]) * (7 + 1), 32 * 4096)
        self.assertLess(int(kept[0]), int(re.search(r"(?m)^LimitNOFILE=(\d+)$", text)[1]))

    def test_a_restart_is_quick_and_follows_every_end(self):
        lines = (SYSTEMD / "terraced.service").read_text().splitlines()
        self.assertEqual(["Restart=always"], [line for line in lines if line.startswith("Restart=")])
        delay = [line for line in lines if line.startswith("RestartSec=")]
        self.assertRegex(delay[0], r"^RestartSec=\d{1,3}ms$")

    def test_the_user_of_the_unit_is_made(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "etc").mkdir()
            subprocess.run(["systemd-sysusers", f"--root={folder}", SYSTEMD / "terrace.sysusers"], check=True,
                           capture_output=True)
            users = pathlib.Path(folder, "etc/passwd").read_text()
            groups = pathlib.Path(folder, "etc/group").read_text()
        self.assertRegex(users, r"(?m)^terrace:")
        self.assertRegex(groups, r"(?m)^video:.*:terrace$")
        self.assertIn("User=terrace", (SYSTEMD / "terraced.service").read_text().splitlines())


if __name__ == "__main__":
    unittest.main()
