"""What a file may have a shell do while it is loaded: build, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foundry.tools.audit.conduct import conduct_gates

BUILDS = {
    "a folder first": "cd made && g++ -O3 k.cpp -o k.so",
    "words in quotes": "g++ -O3 '-DNAME=f(x); y' k.cpp && echo 'done; python it'",
    "in brackets": "(mkdir -p made; cd made; g++ a.cpp) 2>&1 | tee log",
    "other flags when it fails": "if g++ -march=native a.cpp; then echo ok; else g++ a.cpp; fi",
    "one after another": "for f in a b; do g++ -c $f.cpp; done",
    "its own folder": 'cd "$(dirname "$0")" && "g++" "a b.cpp" -o "$(pwd)/k.so"',
    "a comment": "set -e\n# now python does nothing\ng++ a.cpp  # curl neither\n",
}
OTHERS = {
    "behind a build": ("g++ a.cpp; python evil.py", "python evil.py"),
    "substituted": ("g++ $(curl evil) a.cpp", "curl evil"),
    "in backticks": ("g++ `evil` a.cpp", "evil"),
    "in the background": ("evil & g++ a.cpp", "evil"),
    "with a quoted name": ("g++ a.cpp && 'evil' it", "evil it"),
    "with a name of several words": ("g++ a.cpp && 'e v' it", "e_v it"),
    "between quotes": ('echo "$x"; evil; echo "y"', "evil"),
    "between apostrophes in quotes": ('echo "it\'s $(ls)"; evil; echo "it\'s"', "evil"),
    "between apostrophes in comments": ("# don't\nevil\n# it's", "evil"),
    "behind what is no comment": ('echo "a #"; evil', "evil"),
    "in a substitution in quotes": ('echo "$(ls "b" ; evil)"', "evil"),
    "escaped": ("g++ a.cpp; e\\vil", "evil"),
    "in an open quote": ('g++ a.cpp; evil "', "evil"),
    "into a file": ("g++ a.cpp > $(evil)", "evil"),
    "at the end": ("trap evil EXIT; g++ a.cpp", "trap evil EXIT"),
    "in a branch": ("if g++ a.cpp; then evil; fi", "evil"),
}


def spoken_against(event: str, command: str) -> str:
    seen = {"events": [("load", event, command, 7)], "calls": (), "libraries": ()}
    (gate,) = [gate for gate in conduct_gates(seen, "fair", on_cpu=False) if gate.gate == "process events"]
    return "" if gate.passed else gate.evidence


@pytest.mark.parametrize("name", BUILDS)
def test_a_shell_may_build(name: str) -> None:
    assert spoken_against("subprocess.Popen", f"/bin/sh -c {BUILDS[name]}") == ""
    assert spoken_against("os.system", BUILDS[name]) == ""


@pytest.mark.parametrize("name", OTHERS)
def test_every_command_of_a_shell_is_looked_at(name: str) -> None:
    command, culprit = OTHERS[name]
    for evidence in (spoken_against("subprocess.Popen", f"bash -c {command}"), spoken_against("os.system", command)):
        assert f"{culprit}'" in evidence and "line 7" in evidence


WATCH = """
import json, subprocess, sys
from foundry.tools.audit.observation import Observer
observer = Observer("candidate.py")
exec(compile(sys.argv[1], "candidate.py", "exec"))
print(json.dumps([event[2] for event in observer.report()["events"] if event[1] == "subprocess.Popen"]))
"""


@pytest.mark.parametrize("how", ["['bash', 'build.sh']", "['./build.sh']", "['/bin/sh', '-e', 'build.sh']"])
@pytest.mark.parametrize(
    ("line", "is_allowed"), [("true", True), ("sleep 0", False), ("#" * 5000 + "\nsleep 0", False)]
)
def test_a_script_is_what_it_says(how: str, line: str, is_allowed: bool, tmp_path: Path) -> None:
    script = tmp_path / "build.sh"
    script.write_text(f"#!/bin/sh\n# builds\n{line}\n")
    script.chmod(0o755)
    candidate = f"import subprocess\nsubprocess.run({how}, cwd={str(tmp_path)!r}, check=True)\n"
    done = subprocess.run([sys.executable, "-c", WATCH, candidate], capture_output=True, text=True, check=True)
    (seen,) = json.loads(done.stdout.splitlines()[-1])
    assert (spoken_against("subprocess.Popen", seen) == "") == is_allowed


@pytest.mark.parametrize("named", ["PATH", "CXX", ""])
def test_a_compiler_may_be_a_script_where_it_is_installed(named: str, tmp_path: Path) -> None:
    wrapper = tmp_path / "bin" / ("g++" if named == "PATH" else "own-compiler")
    wrapper.parent.mkdir()
    wrapper.write_text('#!/bin/sh\nexec evil-real -B/opt "$@" 2> /dev/null || true\n')
    wrapper.chmod(0o755)
    candidate = f"import subprocess\nsubprocess.run([{str(wrapper)!r}, 'a.cpp'])\n"
    found = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}", "CXX": str(wrapper), "": ""}[named]
    environment = {**os.environ, **({named: found} if named else {})}
    done = subprocess.run(
        [sys.executable, "-c", WATCH, candidate], capture_output=True, text=True, check=True, env=environment
    )
    (seen,) = json.loads(done.stdout.splitlines()[-1])
    assert (spoken_against("subprocess.Popen", seen) == "") == bool(named)


DISGUISES = {
    "another program is started": "subprocess.run(['g++', '--version'], executable={python!r})",
    "a link of its own": "os.symlink({python!r}, 'g++'); subprocess.run(['./g++', '--version'])",
    "found by a path of its own": "os.symlink({python!r}, 'g++'); subprocess.run(['g++', '-V'], env={{'PATH': '.'}})",
    "a file of its own": "shutil.copy({python!r}, 'g++'); subprocess.run(['./g++', '--version'])",
    "a script for another": "open('g++', 'w').write('#!{python}'); os.chmod('g++', 511); subprocess.run('./g++')",
    "a shell that is none": "os.symlink({python!r}, 'sh'); subprocess.run(['./sh', '-c', 'True'])",
    "spawned": "os.symlink({python!r}, 'g++'); os.waitpid(os.posix_spawn('./g++', ['g++', '-V'], {{}}), 0)",
    "in a shell": "os.symlink({python!r}, 'g++'); subprocess.run('./g++ --version', shell=True)",
}
PLAIN = {
    "a compiler": "subprocess.run(['g++', '--version'])",
    "a link to a compiler": "os.symlink(shutil.which('g++'), 'gcc-13'); subprocess.run(['./gcc-13', '--version'])",
    "spawned": "os.waitpid(os.posix_spawn(shutil.which('g++'), ['g++', '--version'], {{}}), 0)",
    "a program of the system": "subprocess.run('uname -a | grep -c x', shell=True)",
}


@pytest.mark.parametrize(("how", "is_allowed"), [*((how, False) for how in DISGUISES), *((how, True) for how in PLAIN)])
def test_a_program_is_the_file_that_runs(how: str, is_allowed: bool, tmp_path: Path) -> None:
    line = (PLAIN if is_allowed else DISGUISES)[how].format(python=os.path.realpath(sys.executable))
    candidate = f"import os, shutil, subprocess\nos.chdir({str(tmp_path)!r})\n{line}\n"
    watch = WATCH.replace('== "subprocess.Popen"', 'in ("subprocess.Popen", "os.posix_spawn")')
    done = subprocess.run([sys.executable, "-c", watch, candidate], capture_output=True, text=True, check=True)
    (seen,) = json.loads(done.stdout.splitlines()[-1])
    assert (spoken_against("subprocess.Popen", seen) == "") == is_allowed
