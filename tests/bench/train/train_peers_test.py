# SPDX-License-Identifier: Apache-2.0
"""Shows that the comparison of trainings says what it found: the rule by which a bar holds, the objects of --json, the
last line, which rows there are; that a contender that fails, or is interrupted, leaves nothing behind; and that losses
are compared bit for bit. Contenders are small processes of this file's own: nothing trains, and nothing is timed."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import contender
import link
import memory_room
import rounds
import run
import sizes
import suites_offload
import train_peers
from peers import Peers
from report import Report, measured_before
from rows import Count, Losses, Missing, Row, against_itself, compare_losses, last_line, to_text

FIELDS = {"bench", "value", "unit", "reference", "reference_value", "ratio", "bar", "better", "interval", "counts",
          "by"}
# A contender that answers as worker.py does, and starts a process that outlives it if nobody ends it.
STANDS_IN = """
import json, os, subprocess, sys
answers, spec = int(sys.argv[1]), json.loads(sys.argv[2])
def say(what): os.write(answers, json.dumps(what).encode() + b"\\n")
subprocess.Popen(["sleep", "1000"], start_new_session=True)
say({"parameters": 1})
step = 0
for line in sys.stdin:
    if spec["kind"] == "fails" and step >= spec.get("after", 0):
        print("out of luck", file=sys.stderr)
        sys.exit(3)
    steps = json.loads(line)["steps"]
    say({"seconds": [spec["seconds"]] * steps, "losses": {step + i: (0.5).hex() for i in range(steps)},
         "read_bytes": 1, "written_bytes": 2})
    step += steps
"""


def row(value, **more):
    return Row("train.some", "some", value, "seconds", 0.5, "others", 2.0, **more)


def fio_of(file):
    """What each process of fio that works on the file has moved so far, as /proc says it."""
    moved = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(file).encode() in (folder / "cmdline").read_bytes():
                lines = (folder / "io").read_text().splitlines()
                moved.append({key: int(value) for key, value in (line.split(": ") for line in lines)})
    return moved


class Rule(unittest.TestCase):
    """By what a bar holds."""

    def test_the_ratio_is_what_the_bar_bounds(self):
        self.assertEqual(row(1.0).ratio, 0.5)
        self.assertEqual(row(1.0).by, "ratio")
        self.assertIsNone(row(1.01).by)
        self.assertEqual(Row("train.alone", "", 3.0, "MiB", 3.0).by, "ratio")
        self.assertIsNone(Row("train.alone", "", 3.1, "MiB", 3.0).by)
        self.assertEqual(row(1.1, better="higher").by, "ratio")

    def test_the_interval_holds_only_with_counts_within_their_limits(self):
        inside = {"interval": (0.4, 0.7)}
        self.assertIsNone(row(1.2, **inside).by)
        self.assertIsNone(row(1.2, **inside, counts=[Count("shown", 1.0)]).by)
        self.assertEqual(row(1.2, **inside, counts=[Count("bytes", 1.0, 1.0)]).by, "interval")
        self.assertIsNone(row(1.2, **inside, counts=[Count("bytes", 1.0, 1.0), Count("more", 2.0, 1.0)]).by)
        self.assertIsNone(row(1.5, **inside, counts=[Count("bytes", 1.0, 1.0)]).by)
        self.assertIsNone(row(0.6, **inside, better="higher", counts=[Count("hits", 0.5, 1.0, "higher")]).by)

    def test_a_required_count_that_passes_its_limit_is_short_whatever_the_ratio_is(self):
        for wrong, right in ((Count("bytes", 2.1, 2.0, required=True), Count("bytes", 2.0, 2.0, required=True)),
                             (Count("killed", 0, 1, "higher", True), Count("killed", 1, 1, "higher", True))):
            self.assertIsNone(row(0.1, counts=[wrong]).by)
            self.assertIsNone(row(1.2, interval=(0.4, 0.7), counts=[wrong, Count("more", 1.0, 1.0)]).by)
            self.assertEqual(row(0.1, counts=[right]).by, "ratio")
            self.assertEqual(row(1.2, interval=(0.4, 0.7), counts=[right]).by, "interval")
        self.assertIsNone(row(0.1, counts=[Count("bytes", 1.0, required=True)]).by, "it has no limit to be within")
        self.assertEqual(row(0.1, counts=[Count("bytes", 2.1, 2.0)]).by, "ratio")
        said = to_text(row(0.1, counts=[Count("bytes", 2.1, 2.0, "lower", True)]))
        self.assertIn("bytes: 2.100 (<= 2, required)", said[-1])
        self.assertIn("SHORT", said[0])

    def test_a_reference_that_never_varies_has_no_interval_to_speak_of(self):
        self.assertEqual(against_itself([(2.0, 2.0), (2.0, 2.0)]), (1.0, 1.0))
        low, high = against_itself([(1.0, 2.0), (1.5, 1.6)])
        self.assertLess(low, 1.0)
        self.assertGreater(high, 1.0)
        self.assertEqual((low, high), against_itself([(1.0, 2.0), (1.5, 1.6)]))

    def test_losses_are_compared_by_their_bits(self):
        ours = {0: (0.1).hex(), 1: (0.1 + 0.2).hex()}
        self.assertEqual(compare_losses("us", ours, {0: (0.1).hex(), 1: (0.3).hex()}).first_difference, 1)
        self.assertTrue(compare_losses("us", ours, ours | {2: (0.0).hex()}).equal)
        self.assertFalse(compare_losses("us", ours, {7: (0.1).hex()}).equal, "nothing was compared")


class Said(unittest.TestCase):
    """What is printed."""

    def test_an_object_has_the_fields_of_terrace_bench(self):
        for one in (row(1.0, counts=[Count("bytes", 1.0, 2.0)], interval=(0.9, 1.1)),
                    Missing("train.none", "", 1.0, "why")):
            said = json.loads(json.dumps(one.to_json()))
            self.assertLessEqual(FIELDS, said.keys())
            self.assertEqual(said["bench"], one.bench)
        self.assertEqual(said["missing"], "why")
        self.assertIsNone(said["by"])

    def test_what_is_missing_is_short(self):
        rows = [row(1.0), row(2.0), Missing("train.none", "", 1.0, "why")]
        self.assertTrue(last_line(rows).endswith("losses_equal=false"), "none were compared")
        rows[0].losses_equal = True
        self.assertEqual(last_line(rows), "train_peers: rows=3 short=2 losses_equal=true")
        rows[1].losses_equal = False
        self.assertTrue(last_line(rows).endswith("losses_equal=false"))
        self.assertIn("why", "\n".join(to_text(rows[2])))
        self.assertIn("SHORT", to_text(rows[1])[0])

    def test_every_bar_of_the_table_has_its_row(self):
        bars = {declared.bench: declared.bar for declared in (row for rows, _ in train_peers.SUITES for row in rows)}
        self.assertEqual(bars, {
            "train.losses": 0, "train.fits_dram": 1.05, "train.dram": 0.8, "train.dram.memory": 1.0,
            "train.block_85m": 0.5, "train.block_85m.memory": 1.0, "train.block_85m.bound": 1.25,
            "train.block_85m.beside_disk": 1.25,
            "train.block_350m": 0.5, "train.block_350m.memory": 1.0, "train.block_350m.bound": 1.25,
            "train.block_350m.beside_disk": 1.25,
            "train.activations.memory": 0.3, "train.activations.time": 1.10, "train.activations.save_on_cpu": 1.0,
            "train.activations.torchtune": 1.0, "train.activations.beside": 1.10, "train.forward": 0.5,
            "train.billion": 1.3, "train.billion.losses": 0,
            "train.checkpoint": 1.2, "train.checkpoint.memory": 256,
            "train.masters": 1.03, "train.masters.bytes": 0.52, "train.autocast.bytes": 0.52,
            "train.host_step.1": 0.8, "train.host_step.2": 0.8, "train.qlora": 1.3, "train.auto": 1.02,
            "train.block_350m_masters": 0.45, "train.block_350m_masters.memory": 1.0,
            "train.billion_masters": 1.3, "train.billion_masters.losses": 0})

    def test_rows_are_chosen_by_name_or_its_beginning(self):
        self.assertEqual(train_peers.wanted_suites("activations,train.forward"), {"activations", "forward"})
        self.assertEqual(train_peers.wanted_suites("block_85m.bound"), {"block_85m"})
        self.assertEqual(len(train_peers.wanted_suites(None)), len(train_peers.SUITES))
        with self.assertRaisesRegex(ValueError, "train.fits_dram"):
            train_peers.wanted_suites("nothing")

    def test_a_row_is_printed_as_it_comes_with_what_its_suite_compared(self):
        out, objects = io.StringIO(), io.StringIO()
        found = Report(["train.some", "train.other"], "quick", out, objects)
        one = run.Run(sizes.QUICK, None, None, self.fail, found)
        one.losses.append(Losses("us", 3, None))
        one.add(row(1.0))
        self.assertIn("train.some", out.getvalue())
        self.assertTrue(json.loads(objects.getvalue())["losses_equal"])
        one.losses.append(Losses("us", 3, 2))
        one.add(Row("train.other", "", 3.0, "MiB", 3.0))
        self.assertFalse(json.loads(objects.getvalue().splitlines()[1])["losses_equal"])
        self.assertEqual(found.end(None), "train_peers: rows=2 short=0 losses_equal=false")

    def test_the_models_are_as_large_as_they_are_called(self):
        for model, parameters in ((sizes.FULL.small, 85e6), (sizes.FULL.medium, 350e6), (sizes.FULL.billion, 1.0e9),
                                  (sizes.FULL.billion_masters, 1.5e9)):
            self.assertAlmostEqual(model.parameters / parameters, 1.0, delta=0.02)
        self.assertEqual(sizes.QUICK.billion.parameters, sizes.FULL.billion.parameters)
        self.assertEqual((sizes.QUICK.billion_steps, sizes.FULL.billion_steps), (2, 20))


class Rooms(unittest.TestCase):
    """What limits a contender's memory, in files that stand in for a cgroup's."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=os.environ.get("TERRACE_BUILD"))))

    def room(self, kind, *files, limit_bytes=1 << 30):
        """The files of a room, of which the kernel has made these."""
        def made(folder):
            os.mkdir(folder)
            for name in files:
                (folder / name).write_text("max")

        root = self.folder / f"{kind}-{len(files)}-{limit_bytes}"
        root.mkdir()
        with unittest.mock.patch.object(pathlib.Path, "mkdir", made):
            memory_room.Room(kind, root, "some", limit_bytes)
        (folder,) = root.iterdir()
        return {file.name: file.read_text() for file in folder.iterdir()}

    def test_a_limit_of_version_2_leaves_no_swap(self):
        limit = str(1 << 30)
        self.assertEqual(self.room("v2", "memory.max", "memory.swap.max"),
                         {"memory.max": limit, "memory.swap.max": "0"})
        self.assertEqual(self.room("v2", "memory.max"), {"memory.max": limit}, "a kernel without swap")
        self.assertEqual(self.room("v2", "memory.max", "memory.swap.max", limit_bytes=None),
                         {"memory.max": "max", "memory.swap.max": "max"})
        self.assertEqual(self.room("v1", "memory.limit_in_bytes"), {"memory.limit_in_bytes": limit})


class Contenders(unittest.TestCase):
    """Turns, of processes that stand in for trainers."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TERRACE_BUILD")))
        (self.folder / "worker.py").write_text(STANDS_IN)
        self.here, contender.HERE = contender.HERE, self.folder
        self.patience, memory_room.END_SECONDS = memory_room.END_SECONDS, 0.2  # what does not end is there on purpose
        self.place = contender.Place(sys.executable, self.folder, memory_room.find(), 1)
        self.said = []

    def tearDown(self):
        contender.HERE, memory_room.END_SECONDS = self.here, self.patience
        for file in self.folder.iterdir():
            file.unlink()  # a folder that is left fails
        self.folder.rmdir()

    def contender(self, name, kind="works", seconds=1.0, **options):
        return contender.Contender(self.place, name, kind, seconds=seconds, **options)

    def run_here(self):
        return run.Run(sizes.QUICK, self.place, None, self.said.append, Report([], "quick", io.StringIO()))

    def check_nothing_is_left(self, *crew):
        for one in crew:
            self.assertEqual(one.room.processes(), [])
            self.assertFalse((self.folder / one.name).exists())
        root = self.place.cgroups[1]
        if root is not None:
            self.assertEqual(list(root.glob(f"{memory_room.PREFIX}-{os.getpid()}-*")), [])

    def test_a_reference_has_two_turns_a_round(self):
        crew = [self.contender("reference", seconds=2.0), self.contender("subject")]
        found = rounds.take_turns(crew[:1], crew[1:], 2, 3, self.said.append)
        self.assertEqual(found["reference"].turns, [2.0] * 4)
        self.assertEqual(found["subject"].turns, [1.0] * 2)
        self.assertEqual(sorted(found["subject"].losses), list(range(6)))
        self.assertEqual((found["subject"].read_bytes, found["subject"].written_bytes), (2, 4))
        self.assertEqual(found["reference"].interval, (1.0, 1.0))
        self.assertGreater(found["subject"].peak_bytes, 0)
        self.check_nothing_is_left(*crew)

    @unittest.skipUnless(shutil.which("fio"), "fio is not installed")
    def test_the_disk_is_busy_while_one_has_its_turn_that_is_to_have_it_so(self):
        self.enterContext(unittest.mock.patch.object(link, "FILE_BYTES", 8 << 20))
        one = link.Carrying(self.place, "beside", "works", read_rate=64e6, written_rate=64e6, seconds=1.0)
        self.addCleanup(one.stop)
        one.start()
        carried, found = self.folder / "beside.carried", []
        ask = one.ask

        def look(**command):
            found[:] = fio_of(carried)
            return ask(**command)

        with unittest.mock.patch.object(one, "ask", look):
            self.assertEqual(one.turn(2).seconds, [1.0, 1.0])
        for kind in ("read_bytes", "write_bytes"):
            self.assertTrue(any(moved[kind] > 0 for moved in found), f"{kind} of {found}")
        self.assertEqual(fio_of(carried), [], "it goes with the turn")
        one.stop()
        self.assertFalse(carried.exists())
        self.check_nothing_is_left(one)

    def test_the_last_losses_that_both_have_are_shown(self):
        ours = rounds.Measured(losses={0: (9.0).hex(), 1: (3.5).hex()})
        peer = rounds.Measured(losses={0: (8.0).hex(), 1: (4.25).hex(), 2: (1.0).hex()})
        self.assertEqual(rounds.last_losses(ours, peer), [Count("loss of step 2", 3.5),
                                                          Count("the reference: loss of step 2", 4.25)])
        self.assertEqual(rounds.last_losses(ours, rounds.Measured()), [])

    def test_a_contender_that_fails_says_why_and_the_others_go_on(self):
        crew = [self.contender("reference"), self.contender("broken", "fails")]
        found = rounds.take_turns(crew[:1], crew[1:], 2, 1, self.said.append)
        self.assertIn("out of luck", found["broken"].failed)
        self.assertEqual(len(found["reference"].turns), 4)
        self.check_nothing_is_left(*crew)

    def test_a_contender_that_fails_goes_on_with_its_other_options(self):
        others = [{"after": 0}, {"kind": "works", "seconds": 3.0}, {"seconds": 4.0}]
        one = self.contender("reference", "fails", after=3, otherwise=others)
        found = rounds.take_turns([one], [self.contender("subject")], 2, 3, self.said.append)["reference"]
        self.assertEqual((found.turns, found.failed), ([3.0] * 3, None))
        self.assertEqual((found.steps, sorted(found.losses)), (9, list(range(9))), "what came before it is dropped")
        self.assertEqual([options["after"] for options, _ in one.given_up], [3, 0])
        self.assertEqual((one.options["kind"], one.options["seconds"]), ("works", 3.0))
        self.check_nothing_is_left(one)

    def test_a_contender_without_other_options_has_failed(self):
        one = self.contender("reference", "fails", after=3, otherwise=[{"after": 0}])
        found = rounds.take_turns([one], [self.contender("subject")], 2, 3, self.said.append)["reference"]
        self.assertIn("out of luck", found.failed)
        self.assertEqual(found.turns, [])
        self.check_nothing_is_left(one)

    def test_the_fastest_settings_that_pass_a_trial_train_and_the_next_ones_follow(self):
        here = self.run_here()
        here.sizes = dataclasses.replace(sizes.QUICK, tuned=True)
        trials = {0: 2.0, 1: None, 2: 1.0, 3: 4.0, 4: 3.0, 5: None}

        def tried(_, model, number):
            self.assertEqual(model, sizes.QUICK.medium)
            seconds = trials[number]
            return rounds.Measured(failed="no buffers") if seconds is None else rounds.Measured(turns=[seconds])

        with unittest.mock.patch.object(suites_offload, "_tried", tried):
            one = suites_offload._deepspeed(here, sizes.QUICK.medium)
        used = [one.options["settings"]]
        while one.try_otherwise("out of luck"):
            used.append(one.options["settings"])
        self.assertEqual(used, [suites_offload.SETTINGS[number] for number in (2, 0, 4, 3)])
        self.assertEqual([why for _, why in one.given_up], ["no buffers"] * 2 + ["out of luck"] * 3)
        words = suites_offload._settings_words(one)
        self.assertIn("settings: pipeline False", words)
        self.assertIn("failed: sub_group_size 67108864: no buffers", words)
        self.assertIn("failed: as first tried: out of luck", words)

    def test_an_interrupt_ends_everything(self):
        crew = [self.contender("reference"), self.contender("subject")]

        def interrupt():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            rounds.take_turns(crew[:1], crew[1:], 2, 1, self.said.append, interrupt)
        self.check_nothing_is_left(*crew)

    def test_a_disk_that_is_too_small_is_said(self):
        one = self.run_here()
        self.assertIn("are free", one.short_of_disk(1 << 60))
        self.assertIsNone(one.short_of_disk(-run.SPARE_DISK_BYTES))

    def test_all_of_a_row_have_one_limit(self):
        crew = [self.contender("reference"), self.contender("subject")]
        crew[0].expected_bytes, crew[1].expected_bytes = 4 << 20, 8 << 20
        words = self.run_here().limit(crew)
        if self.place.cgroups[1] is None:
            self.assertIn("no memory limit", words)
            self.assertEqual([one.limit_bytes for one in crew], [None, None])
        else:
            self.assertEqual(words, "10 MiB of memory for each")
            self.assertEqual([one.limit_bytes for one in crew], [10 << 20, 10 << 20])

    def test_memory_is_limited_where_it_can_be(self):
        if self.place.cgroups[1] is None:
            self.skipTest("no memory cgroup can be made here")
        hungry = self.contender("hungry")
        (self.folder / "worker.py").write_text("import sys; taken = b'x' * (256 << 20)\n")
        hungry.limit_bytes = 64 << 20
        with self.assertRaisesRegex(contender.Ended, "for want of memory"):
            hungry.start()
        self.check_nothing_is_left(hungry)


class Whole(unittest.TestCase):
    """The script, with suites that stand in for its own."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=os.environ.get("TERRACE_BUILD"))))
        peers = Peers(self.folder, {})
        self.enterContext(unittest.mock.patch.object(train_peers, "prepare", lambda *_: peers))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.addCleanup(signal.signal, number, signal.getsignal(number))

    def main(self, *arguments):
        """Its status, its objects by row, and its last line."""
        out = io.StringIO()
        command = ["train_peers", "--quick", "--json", "--terraced", "/bin/true", "--disk", str(self.folder),
                   *arguments]
        with (unittest.mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(out),
              contextlib.redirect_stderr(io.StringIO())):
            status = train_peers.main()
        (self.folder / "said").write_text(out.getvalue())
        *objects, last = out.getvalue().splitlines()
        return status, {said["bench"]: said for said in map(json.loads, objects)}, last

    def suites(self, matrix, forward):
        for name, does in (("matrix", matrix), ("forward", forward)):
            self.enterContext(unittest.mock.patch.object(train_peers.suites_other, name, does))

    def test_what_was_measured_is_said_when_it_is_interrupted_and_not_measured_again(self):
        def losses(found):
            found.losses.append(Losses("us", 50, None))
            found.add(Row("train.losses", "losses", 0, "combinations", 0))

        def interrupts(_):
            raise KeyboardInterrupt

        def forward(found):
            found.add(Row("train.forward", "forward", 0.3, "seconds", 0.5, "peer", 1.0, interval=(0.9, 1.1),
                          counts=[Count("bytes", 1.0, 2.0)]))

        self.suites(losses, interrupts)
        plot = self.folder / "rows.png"
        with unittest.mock.patch.dict(sys.modules, picture=unittest.mock.Mock()) as modules:
            status, found, last = self.main("--rows", "losses,forward", "--plot", str(plot))
            modules["picture"].draw.assert_called_once()
        self.assertEqual((status, last), (130, "train_peers: rows=2 short=1 losses_equal=true"))
        self.assertIn("interrupted", found["train.forward"]["missing"])

        self.suites(interrupts, forward)
        status, again, last = self.main("--rows", "losses,forward", "--resume", str(self.folder / "said"))
        self.assertEqual((status, last), (0, "train_peers: rows=2 short=0 losses_equal=true"))
        self.assertEqual(again["train.losses"], found["train.losses"])
        _, last_time, _ = self.main("--rows", "losses,forward", "--resume", str(self.folder / "said"))
        self.assertEqual(last_time, again)

    def test_a_suite_that_fails_leaves_its_rows_missing_and_the_next_one_runs(self):
        def fails(_):
            raise RuntimeError("out of luck")

        def forward(found):
            found.add(Row("train.forward", "forward", 0.3, "seconds", 0.5))

        self.suites(fails, forward)
        status, found, last = self.main("--rows", "losses,forward")
        self.assertIn("out of luck", found["train.losses"]["missing"])
        self.assertEqual(found["train.forward"]["by"], "ratio")
        self.assertEqual((status, last), (1, "train_peers: rows=2 short=1 losses_equal=false"))

    def test_a_row_is_read_as_it_was_written_and_as_older_runs_wrote_it(self):
        said = self.folder / "said.json"
        one = row(1.0, interval=(0.9, 1.1), counts=[Count("bytes", 3.0, 2.0, required=True), Count("shown", 1.0)])
        said.write_text(json.dumps(one.to_json() | {"sizes": "full"}))
        self.assertEqual(measured_before(said, "full"), [one])
        self.assertIsNone(one.by)
        older = one.to_json() | {"sizes": "full"}
        older["counts"] = [{name: value for name, value in count.items() if name != "required"}
                           for count in older["counts"]]
        said.write_text(json.dumps(older))
        (found,) = measured_before(said, "full")
        self.assertEqual((found.by, [count.required for count in found.counts]), ("ratio", [False, False]))

    def test_rows_of_other_sizes_are_not_taken(self):
        said = self.folder / "said.json"
        said.write_text(json.dumps(row(1.0).to_json() | {"sizes": "full"}) + '\n{"bench": "train.cut')
        self.assertEqual([one.bench for one in measured_before(said, "full")], ["train.some"])
        with self.assertRaisesRegex(ValueError, "'full'"):
            measured_before(said, "quick")

    def test_it_lists_its_rows(self):
        out = io.StringIO()
        before, sys.argv = sys.argv, ["train_peers", "--list"]
        try:
            with contextlib.redirect_stdout(out):
                self.assertEqual(train_peers.main(), 0)
        finally:
            sys.argv = before
        self.assertEqual(len(out.getvalue().splitlines()), len(train_peers.row_names()))


if __name__ == "__main__":
    unittest.main()
