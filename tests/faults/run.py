"""Plants each fault of this folder in a copy of the repository and shows that a test turns red.

Command: make faults, or python tests/faults/run.py [NAME …]

A fault is a patch NAME.patch, as `git diff` writes it,
below a head that says what is wrong and which tests must fail:

    # fault: a 90 % interval is given for one of 95 %
    # test: tests/evaluation/test_statistics.py::test_the_interval_is_a_95_percent_one

The named tests must pass in the copy as it is, and each must fail with the fault planted. A test that cannot
be imported, collected or set up shows nothing. The exit status is 1 where a fault survives. Needs git,
for `git apply`.
"""

import argparse
import importlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path("tests", "faults")
LEFT_OUT = (".git", ".venv", "runs", "build", "*.egg-info", "__pycache__", ".*_cache")
LINKS = ("trainers", "recipes")  # folders at the top that are imported as rewardedit.NAME
# of a patch that does not fit the code
BROKEN = ("SyntaxError", "ImportError", "ModuleNotFoundError", "NameError")
LIMIT = 900  # seconds for the tests of one fault
WRONG_TREE = 99  # exit status of a process that imported another tree than its copy


@dataclass(frozen=True)
class Fault:
    """A patch, what it breaks, and the tests that must notice."""

    path: Path
    what: str
    tests: tuple[str, ...]  # pytest's names: file::test

    @property
    def name(self) -> str:
        return self.path.stem


def read_fault(path: Path) -> Fault:
    """The fault of a patch.

    Raises:
        ValueError: where its head does not say what is wrong, or names no test.
    """
    head = path.read_text().partition("diff --git")[0].splitlines()
    what = [line.removeprefix("# fault: ") for line in head if line.startswith("# fault: ")]
    tests = [line.removeprefix("# test: ") for line in head if line.startswith("# test: ")]
    if len(what) != 1 or not tests:
        raise ValueError(
            f"{path}: expected one line '# fault: …' and at least one '# test: …' above the patch"
        )
    return Fault(path, what[0], tuple(tests))


def read_faults(root: Path) -> list[Fault]:
    """All faults of a repository, by name."""
    return [read_fault(path) for path in sorted((root / FOLDER).glob("*.patch"))]


def git_apply(fault: Fault, tree: Path, *options: str) -> None:
    """Plants a fault in a tree; with "--check" it is only tried, with "--reverse" taken out again.

    Raises:
        ValueError: where the patch does not fit the tree.
    """
    # A tree inside another repository must not be taken for a part of it: git would skip the patch without a
    # word.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    command = ["git", "apply", *options, str(fault.path.resolve())]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{fault.name}: the patch does not fit; make it anew ({done.stderr.strip()})")


def make_copy(root: Path, copy: Path) -> None:
    """Copies a repository so that the copy imports itself,
    also where `root` is installed in editable mode.
    """
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    # An editable install knows these folders by where they lie in `root`; what lies inside the package is
    # found first.
    for name in LINKS:
        if (copy / name).is_dir():
            (copy / "rewardedit" / name).symlink_to(copy / name, target_is_directory=True)


def _ours() -> list[str]:
    """Imported modules that belong to the repository."""
    return [name for name in sys.modules if name.partition(".")[0] in ("rewardedit", "tests")]


def _foreign(copy: Path) -> list[str]:
    """Files of imported modules that ought to be the copy's and are another tree's."""
    files = [getattr(sys.modules[name], "__file__", None) for name in _ours()]
    return [file for file in files if file is not None and not Path(file).is_relative_to(copy)]


def preload(copy: Path) -> None:
    """Imports what the repository imports, and forgets the repository:
    forked processes need not load torch again.

    Raises:
        RuntimeError: where the copy imports another tree; its tests would then say nothing about faults in
            the copy.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # faults run side by side
    sys.dont_write_bytecode = True  # a file that changes twice in a second could be taken for what it was
    sys.path.insert(0, str(copy))
    # Not the tests' conftest.py: it makes a device known to torch, which a process can do only once.
    for path in copy.glob("trainers/[!_]*.py"):
        importlib.import_module(f"rewardedit.trainers.{path.stem}")
    importlib.import_module("rewardedit.trainers")
    foreign = _foreign(copy)
    if foreign:
        raise RuntimeError(f"the copy in {copy} does not import itself; it found {foreign[0]}")
    for name in _ours():
        del sys.modules[name]
    sys.path.remove(str(copy))


def fork_pytest(copy: Path, words: Sequence[str]) -> int:
    """Starts pytest in a copy, in a process and session of its own; returns the process's id."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = WRONG_TREE
    try:
        os.setsid()
        os.chdir(copy)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        paths = [str(copy), *filter(None, [os.environ.get("PYTHONPATH")])]  # for processes that tests start
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path.insert(0, str(copy))
        found = pytest.main(list(words))
        status = WRONG_TREE if _foreign(copy) else int(found)
    finally:
        os._exit(status)


@dataclass
class Run:
    """Some tests in a copy, with a fault planted or without one."""

    copy: Path
    fault: Fault | None
    tests: Sequence[str]

    def start(self) -> None:
        """Plants the fault and starts the tests.

        Raises:
            ValueError: where the patch does not fit.
        """
        self.report = self.copy.with_suffix(".xml")
        base = self.copy.with_suffix(".tmp")
        self.report.unlink(missing_ok=True)
        if self.fault is not None:
            git_apply(self.fault, self.copy)
        words = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:schemathesis",  # it takes a second to import
            f"--junitxml={self.report}",
            f"--basetemp={base}",
            "-m",
            "",
            *self.tests,
        ]
        self.process = fork_pytest(self.copy, words)
        self.began = time.monotonic()

    def is_done(self) -> bool:
        """True if the tests have ended; stops them if they take too long."""
        self.seconds = time.monotonic() - self.began
        process, status = os.waitpid(self.process, os.WNOHANG)
        self.is_late = not process and self.seconds > LIMIT
        if self.is_late:
            os.killpg(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        self.wrong_tree = bool(process) and os.waitstatus_to_exitcode(status) == WRONG_TREE
        return bool(process) or self.is_late

    def finish(self) -> dict[str, str]:
        """Outcome of each test: "passed", "failed", or the reason why neither is known;
        removes the fault again.
        """
        if self.fault is not None:
            git_apply(self.fault, self.copy, "--reverse")
        if self.is_late or self.wrong_tree:
            return dict.fromkeys(
                self.tests, f"no end after {LIMIT} s" if self.is_late else "another tree was imported"
            )
        cases = list(ElementTree.parse(self.report).iter("testcase")) if self.report.is_file() else []
        return {test: _outcome([case for case in cases if _is_case(case, test)]) for test in self.tests}


def run_all(
    wanted: Iterable[tuple[Fault | None, Sequence[str]]], copies: Sequence[Path]
) -> Iterator[tuple[Run, dict[str, str]]]:
    """Runs tests with their faults, one at a time in each copy; yields each with what became of its tests."""
    waiting = list(wanted)
    free = list(copies)
    going = list[Run]()
    while waiting or going:
        while waiting and free:
            fault, tests = waiting.pop(0)
            now = Run(free[0], fault, tests)
            try:
                now.start()
            except ValueError:
                now.seconds = 0.0
                yield now, dict.fromkeys(tests, "the patch does not fit")
                continue
            going.append(now)
            free.remove(now.copy)
        for now in [one for one in going if one.is_done()]:
            going.remove(now)
            free.append(now.copy)
            yield now, now.finish()
        time.sleep(0.05)


def _is_case(case: ElementTree.Element, test: str) -> bool:
    """True if a case of pytest's report is the named test, or one of its parameter sets."""
    name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
    return name == test or name.startswith(f"{test}[")


def _outcome(cases: Sequence[ElementTree.Element]) -> str:
    if not cases:
        return "not found"
    failures = [str(found.get("message")) for case in cases for found in case.iter("failure")]
    broken = [message for message in failures if message.startswith(BROKEN)]
    errors = [str(found.get("message")) for case in cases for found in case.iter("error")]
    for message in (*errors, *broken):
        return f"broken ({message.splitlines()[0]})"
    if failures:
        return "failed"
    return "skipped" if all(case.find("skipped") is not None for case in cases) else "passed"


def verdict(fault: Fault, clean: dict[str, str], planted: dict[str, str]) -> str:
    """ "red" where every named test passes without the fault and fails with it; otherwise what is amiss."""
    for test in fault.tests:
        if clean[test] != "passed":
            return f"{test} without the fault: {clean[test]}"
    survived = [f"{test}: {planted[test]}" for test in fault.tests if planted[test] != "failed"]
    return f"SURVIVES, {'; '.join(survived)}" if survived else "red"


def run(root: Path, names: Sequence[str] = (), jobs: int = 2) -> int:
    """Plants the faults of those names (by default all) one by one, prints a line for each;
    1 where one survives.

    Raises:
        ValueError: where there is no fault of a name.
    """
    known = {fault.name: fault for fault in read_faults(root)}
    unknown = sorted(set(names) - set(known))
    if unknown or not known:
        raise ValueError(f"no fault named {', '.join(unknown)}; there are {', '.join(known) or 'none'}")
    faults = [known[name] for name in names or known]
    began = time.monotonic()
    survivors = list[str]()
    clean = dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copies = [Path(folder).resolve() / f"copy-{k}" for k in range(jobs)]
        for copy in copies:
            make_copy(root, copy)
        preload(copies[0])
        # Tests of one file stay together, as they share what it sets up.
        tests = sorted({test for fault in faults for test in fault.tests})
        files = [list(group) for _, group in itertools.groupby(tests, lambda test: test.partition("::")[0])]
        for _, found in run_all([(None, group) for group in files], copies):
            clean |= found
        print(
            f"{len(tests)} tests without a fault: {list(clean.values()).count('passed')} passed", flush=True
        )
        for done, found in run_all([(fault, fault.tests) for fault in faults], copies):
            assert done.fault is not None
            said = verdict(done.fault, clean, found)
            print(f"{done.fault.name:<40}{done.seconds:4.0f} s  {said:<5} {done.fault.what}", flush=True)
            if said != "red":
                survivors.append(done.fault.name)
    print(
        f"{len(faults) - len(survivors)} of {len(faults)} faults turn their tests red, in "
        f"{time.monotonic() - began:.0f} s"
    )
    if survivors:
        print(f"not red: {', '.join(survivors)}")
    return int(bool(survivors))


def main(words: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Plants faults in a copy, one by one, and shows that tests turn red."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults by name; all without one")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    asked = parser.parse_args(None if words is None else list(words))
    try:
        return run(asked.root, asked.names, asked.jobs)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
