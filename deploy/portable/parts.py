# SPDX-License-Identifier: Apache-2.0
"""Writes down what the portable programs and the Python extension are made of: parts.py BUILD_FOLDER SOURCES_FOLDER OUT

OUT/sboms/terrace.cdx.json lists each library with its version and licence, as CycloneDX. OUT/licenses has ours, and the
notices of all of them. Nobody keeps a list: what was compiled and linked is asked of the build, and whose it is of dpkg.
The Python that runs this has the nanobind that the extension is built with.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("terraced", "terracectl", "terrace-bench", "terrace-sim")
SYSTEM = {"glibc", "linux"}  # headers alone: the machine has its own
NANOBIND = "nanobind"


class Part:
    """One library: its name, version, package URL, notice, and what the notice says of its licence."""

    def __init__(self, name, version, purl, notice):
        self.name, self.version, self.purl, self.notice = name, version, purl, notice

    @property
    def license(self):
        stanza = re.search(r"^Files: \*\n(?:.*\n)*?License: *(.+)", self.notice, re.MULTILINE)
        return stanza[1].strip() if stanza else None

    def component(self):
        return {"type": "library", "bom-ref": self.purl, "name": self.name, "version": self.version, "purl": self.purl,
                **({"licenses": [{"license": {"name": self.license}}]} if self.license else {})}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def files_of(build):
    """The system's headers and archives that went into the programs."""
    said = output("ninja", "-C", build, "-t", "deps") + output("ninja", "-C", build, "-t", "commands", *PROGRAMS)
    return {os.path.realpath(path) for path in re.findall(r"/usr/\S+\.\w+", said) if os.path.isfile(path)}


def source_part(name, version, notice):
    """A source package of this Debian, by which several packages are one part."""
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)', pathlib.Path("/etc/os-release").read_text(), re.MULTILINE))
    distribution = f"{system['ID']}-{system['VERSION_ID']}"
    purl = f"pkg:deb/{system['ID']}/{name}@{urllib.parse.quote(version)}?arch=source&distro={distribution}"
    return Part(name, version, purl, notice.read_text())


def installed_part(package):
    name, version = output("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", package).split()
    return source_part(name, version, pathlib.Path("/usr/share/doc", package, "copyright"))


def debian_parts(build, sources):
    """What dpkg knows of the files, and what was built of source packages, by name."""
    owners = output("dpkg", "-S", *sorted(files_of(build)))
    packages = set(re.findall(r"^([^:,\s]+)(?::\w+)?: ", owners, re.MULTILINE))
    found = {part.name: part for part in map(installed_part, sorted(packages)) if part.name not in SYSTEM}
    for named in (sources / "complete").read_text().split():
        name, version = named.split("=")
        if found.setdefault(name, source_part(name, version, sources / name / "debian/copyright")).version != version:
            sys.exit(f"the headers of {name} are of {found[name].version}, and its sources of {version}: "
                     "run deploy/portable/sources, and build again")
    return found


def nanobind_part():
    installed = importlib.metadata.distribution(NANOBIND)
    notices = [path.read_text() for path in map(pathlib.Path, map(installed.locate_file, installed.files or []))
               if path.name.startswith("LICENSE")]
    return Part(NANOBIND, installed.version, f"pkg:pypi/{NANOBIND}@{installed.version}", "\n".join(notices))


def bill(version, parts):
    """The software bill of materials, of the time that SOURCE_DATE_EPOCH names."""
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.UTC)
    ours = f"pkg:pypi/terrace@{version}"
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
            "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "component": {"type": "application", "bom-ref": ours, "name": "terrace", "version": version,
                                       "purl": ours, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
            "components": [part.component() for part in parts],
            "dependencies": [{"ref": ours, "dependsOn": [part.purl for part in parts]}]}


def main():
    build, sources, out = map(pathlib.Path, sys.argv[1:])
    parts = [part for _, part in sorted({**debian_parts(build, sources), NANOBIND: nanobind_part()}.items())]
    for part in parts:
        if not part.notice.strip():
            sys.exit(f"{part.name} {part.version} has no notice to ship")
    version = re.search(r"^project\(Terrace VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
    for folder in ("sboms", "licenses"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    (out / "sboms/terrace.cdx.json").write_text(json.dumps(bill(version, parts), indent=1) + "\n")
    shutil.copyfile(ROOT / "LICENSE", out / "licenses/LICENSE")
    rule = "=" * 80
    (out / "licenses/THIRD-PARTY").write_text("".join(
        f"{rule}\n{part.name} {part.version}\n{rule}\n\n{part.notice.strip()}\n\n" for part in parts))


if __name__ == "__main__":
    main()
