"""Shell commands that a file may run while it is loaded: builds, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.forking import Forks

from foundry.tools.audit.acts.conduct import conduct_gates
from foundry.tools.audit.acts.observed import Observations
from foundry.tools.grade.runner.programs import Programs

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
    seen: Observations = {"events": [("load", event, command, 7)], "calls": [], "libraries": []}
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
import json, sys
from foundry.tools.grade.runner.observe import Observer
observer = Observer("candidate.py")
exec(compile(sys.argv[1], "candidate.py", "exec"))
print("told", json.dumps([event[2] for event in observer.report()["events"] if event[1] == "subprocess.Popen"]))
"""


def watched(forks: Forks, candidate: str, **environment: str) -> list[str]:
    """The observer's record of the commands that a candidate runs."""
    done = forks(WATCH, candidate, environment=environment)
    (told,) = (line for line in done.stdout.splitlines() if line.startswith("told "))
    return list(json.loads(told.removeprefix("told ")))


SCRIPTS = [  # (how it is run, a line of it, whether it may)
    (how, line, is_allowed)
    for how in (["bash", "build.sh"], ["./build.sh"], ["/bin/sh", "-e", "build.sh"])
    for line, is_allowed in (("true", True), ("sleep 0", False), ("#" * 5000 + "\nsleep 0", False))
]


@pytest.fixture(scope="module")
def scripts_seen(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The observer's record of each of SCRIPTS, all run by one candidate."""
    candidate = "import subprocess\n"
    for how, line, _ in SCRIPTS:
        script = tmp_path_factory.mktemp("script") / "build.sh"
        script.write_text(f"#!/bin/sh\n# builds\n{line}\n")
        script.chmod(0o755)
        candidate += f"subprocess.run({how}, cwd={str(script.parent)!r}, check=True)\n"
    seen = watched(forks, candidate)
    assert len(seen) == len(SCRIPTS)
    return seen


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_a_script_is_what_it_says(number: int, scripts_seen: list[str]) -> None:
    assert (spoken_against("subprocess.Popen", scripts_seen[number]) == "") == SCRIPTS[number][2]


@pytest.mark.parametrize("named", ["PATH", "CXX", ""])
def test_a_compiler_may_be_a_script_where_it_is_installed(named: str, forks: Forks, tmp_path: Path) -> None:
    wrapper = tmp_path / "bin" / ("g++" if named == "PATH" else "own-compiler")
    wrapper.parent.mkdir()
    wrapper.write_text('#!/bin/sh\nexec evil-real -B/opt "$@" 2> /dev/null || true\n')
    wrapper.chmod(0o755)
    candidate = f"import subprocess\nsubprocess.run([{str(wrapper)!r}, 'a.cpp'])\n"
    found = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}", "CXX": str(wrapper), "": ""}[named]
    (seen,) = watched(forks, candidate, **({named: found} if named else {}))
    assert (spoken_against("subprocess.Popen", seen) == "") == bool(named)


# (what runs, its words, what the environment adds); `./g++` and `./sh` are what a test makes of them
COMMANDS: dict[str, tuple[str | None, list[str], dict[str, str], bool]] = {
    "a compiler": (None, ["g++", "-O3"], {}, True),
    "a program of the system": (None, ["uname", "-a"], {}, True),
    "another program than it says": (sys.executable, ["g++", "-O3"], {}, False),
    "a name that its own folder has": (None, ["g++", "-O3"], {"PATH": "."}, False),
    "its own file": (None, ["./g++", "-O3"], {}, False),
    "a shell": (None, ["sh", "-c", "true"], {}, True),
    "a shell that is none": (None, ["./sh", "-c", "true"], {}, False),
    "its own file in a shell": (None, ["sh", "-c", "./g++ -O3"], {}, False),
}


@pytest.mark.parametrize("made", ["a link", "a copy", "a script"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_program_is_the_file_that_runs(name: str, made: str, tmp_path: Path) -> None:
    executable, command, more, is_allowed = COMMANDS[name]
    programs = Programs()
    for own in ("g++", "sh"):
        if made == "a link":
            (tmp_path / own).symlink_to(os.path.realpath(sys.executable))
        elif made == "a copy":
            shutil.copy(os.path.realpath(sys.executable), tmp_path / own)
        else:
            (tmp_path / own).write_text(f"#!{sys.executable}\n")
            (tmp_path / own).chmod(0o755)
    told = programs.command(executable, command, tmp_path, {**os.environ, **more})
    assert (spoken_against("subprocess.Popen", " ".join(told)) == "") == is_allowed


def test_a_link_to_a_compiler_is_one(tmp_path: Path) -> None:
    programs = Programs()
    (tmp_path / "mine").symlink_to(str(shutil.which("g++")))
    assert spoken_against("subprocess.Popen", " ".join(programs.command(None, ["./mine", "-O3"], tmp_path))) == ""


SETTINGS = {
    "a default": ("${CXX:-g++} --version", {}, True),
    "a setting": ("if $CXX -O3 --version; then true; fi", {"CXX": "g++"}, True),
    "a setting before the default": ("${CXX:-g++} --version", {"CXX": "sleep 0;"}, False),
    "a setting that is another program": ("${CXX:-g++}", {"CXX": "sleep 0"}, False),
    "no setting": ("$CXX --version", {}, False),
    "its own setting": ("CXX='sleep 0'; $CXX", {"CXX": "g++"}, False),
    "a setting that is read": ("read -r CXX < flags; $CXX", {"CXX": "g++"}, False),
    "a quote in a setting": ("echo '$X'; sleep 0; echo ''", {"X": "'"}, False),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("command", [["sh", "build.sh"], ["./build.sh"], ["sh", "-c", "$(text)"]])
def test_a_variable_is_what_it_stands_for(name: str, command: list[str], tmp_path: Path) -> None:
    text, given, is_allowed = SETTINGS[name]
    (tmp_path / "build.sh").write_text(f"#!/bin/sh\n{text}\n")
    words = [text if word == "$(text)" else word for word in command]
    told = Programs().command(None, words, tmp_path, {"PATH": os.environ["PATH"], **given})
    assert (spoken_against("subprocess.Popen", " ".join(told)) == "") == is_allowed
