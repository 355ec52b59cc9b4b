"""The faults that are kept fit the code and name tests that exist,
and a fault that no test notices is told.
"""

import ast
import subprocess
import sys
from functools import cache

import pytest

from tests.faults.run import FOLDER, ROOT, git_apply, read_fault, read_faults

FAULTS = read_faults(ROOT)


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code_and_its_tests_are_there(fault):
    git_apply(fault, ROOT, "--check")
    for test in fault.tests:
        file, name = test.split("::")
        assert name.partition("[")[0] in functions_of(file), test


PATCH = """# fault: {what}
# test: tests/test_double.py::{test}
diff --git a/rewardedit/double.py b/rewardedit/double.py
--- a/rewardedit/double.py
+++ b/rewardedit/double.py
@@ -1,2 +1,2 @@
 def double(x):
-    return {old}
+    return {new}
"""


@pytest.fixture
def tree(tmp_path):
    """A repository of one function, two tests of it, and four faults of which one is noticed."""
    for name in ("rewardedit", "trainers", "tests/faults"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("rewardedit", "trainers", "tests"):
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "rewardedit" / "double.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "tests" / "test_double.py").write_text(
        "import rewardedit.trainers\n"
        "from rewardedit.double import double\n"
        "def test_two(): assert double(2) == 4\n"
        "def test_zero(): assert double(0) == 0\n"
    )
    for name, test, old, new in (
        ("noticed", "test_two", "2 * x", "3 * x"),
        ("survivor", "test_zero", "2 * x", "3 * x"),
        ("misspelt", "test_two", "2 * x", "3 * y"),
        ("misplaced", "test_two", "x * 2", "3 * x"),
    ):
        (tmp_path / FOLDER / f"{name}.patch").write_text(PATCH.format(what=name, test=test, old=old, new=new))
    return tmp_path


def planted(tree, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / FOLDER / "run.py"), "--root", str(tree), *names]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_fault_that_no_test_notices_is_told(tree):
    done = planted(tree)
    assert done.returncode == 1, done.stderr
    assert "2 tests without a fault: 2 passed" in done.stdout
    assert "1 of 4 faults turn their tests red" in done.stdout
    assert "not red: misplaced, misspelt, survivor" in done.stdout
    found = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "red" in found["noticed"]
    assert "SURVIVES, tests/test_double.py::test_zero: passed" in found["survivor"]
    assert "broken (NameError" in found["misspelt"]
    assert "the patch does not fit" in found["misplaced"]
    assert (tree / "rewardedit" / "double.py").read_text() == "def double(x):\n    return 2 * x\n"


@pytest.mark.slow
def test_one_fault_is_run_by_name(tree):
    done = planted(tree, "noticed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 faults turn their tests red" in done.stdout
    unheard = planted(tree, "unheard")
    assert unheard.returncode == 2
    assert "no fault named unheard; there are misplaced, misspelt, noticed, survivor" in unheard.stderr


def test_a_test_that_is_red_without_the_fault_shows_nothing(tree):
    (tree / "rewardedit" / "double.py").write_text("def double(x):\n    return 2 * x\n\n\ndouble = abs\n")
    done = planted(tree, "noticed")
    assert done.returncode == 1
    assert "tests/test_double.py::test_two without the fault: failed" in done.stdout


def test_a_patch_must_say_what_is_wrong_and_who_notices(tmp_path):
    (tmp_path / "silent.patch").write_text("# fault: x\ndiff --git a/x b/x\n")
    with pytest.raises(ValueError, match="at least one '# test: …'"):
        read_fault(tmp_path / "silent.patch")
