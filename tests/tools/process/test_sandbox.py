"""A confined worker reaches what kernels need and nothing else; what the kernel refuses is named, and work goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from foundry.tools.grade.host.folders import prepare_folders
from foundry.tools.process import sandbox
from foundry.tools.process.child import Limits, run_command
from foundry.tools.process.linux import (
    CAPABILITIES,
    FILES,
    MEANS,
    MEMORY,
    NETWORK,
    SIGNALS,
    SYSCALLS,
    TEMPORARY,
    Orders,
)
from foundry.tools.process.procfs import cpu_ns
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.seccomp import program
from foundry.tools.process.zygote import ALWAYS, Worker, Zygote

ENTRIES = """
import ctypes, os, resource, signal, socket, subprocess, sys, time

libc = ctypes.CDLL(None, use_errno=True)

def serve(channel):
    while True:
        message, handles = channel.receive()
        try:
            answer = eval(message["code"], globals(), message)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        channel.send({"answer": answer})

def read(path):
    with open(path, "rb") as file:
        return len(file.read(100))

def write(path):
    with open(path, "wb") as file:
        return file.write(b"x")

def call(number, *arguments):
    return ctypes.get_errno() if libc.syscall(number, *arguments) < 0 else 0

def run(*argv, **more):
    done = subprocess.run(argv, capture_output=True, text=True, **more)
    return [done.returncode, done.stdout + done.stderr]

def connected(path):
    with socket.socket(socket.AF_UNIX) as plug:
        plug.connect(path)
"""
EPERM, ENOSYS = 1, 38
START_CPU_S = 0.1  # of a confined worker that has imported nothing
X86_ONLY = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the system call numbers are those of x86-64")
# Not all machines that run the tests have all means; what is missing is what `foundry doctor` says.
HERE = sandbox.available().active
NEEDS = {name: pytest.mark.skipif(name not in HERE, reason=f"no {name} on this machine") for name in MEANS}


class Confined:
    """A candidate's worker, as a place to try things in."""

    def __init__(self, worker: Worker, scratch: Path, secret: Path) -> None:
        self.worker, self.scratch, self.secret = worker, scratch, secret

    def __call__(self, code: str, **names: Any) -> Any:
        return self.worker.request({"code": code, **names}, timeout_s=PATIENCE_S)[0]["answer"]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "confined_entries.py").write_text(ENTRIES)
    return folder


@pytest.fixture(scope="module")
def zygote(code: Path) -> Iterator[Zygote]:
    warm = Zygote.start(threads=1, preload=["ctypes"], later=[], environment={"PYTHONPATH": str(code)})
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def candidate(zygote: Zygote, code: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Confined]:
    folder = tmp_path_factory.mktemp("confined")
    (folder / "scratch").mkdir()
    (folder / "scratch" / "tmp").mkdir()
    (folder / "receipt.json").write_text("{}")
    worker = zygote.fork(
        "confined_entries:serve",
        Limits(wall_s=30),
        directory=folder / "scratch",
        environment={"TMPDIR": str(folder / "scratch")},
        sandbox=Sandbox(
            "candidate",
            readable=(str(code),),
            writable=(str(folder / "scratch"),),
            temporary=str(folder / "scratch" / "tmp"),
        ),
    )
    yield Confined(worker, folder / "scratch", folder / "receipt.json")
    worker.end()


@NEEDS[FILES]
def test_who_is_confined_before_the_machines_first_build_may_open_it(
    zygote: Zygote, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes are made ahead. On a fresh machine the first candidate was refused its own cubin: there was no build
    cache yet to confine it to."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache" / "build"))
    own = prepare_folders("", tmp_path)
    confined = replace(own.sandbox, readable=(*own.sandbox.readable, str(code)))
    worker = zygote.fork("confined_entries:serve", Limits(wall_s=30), directory=tmp_path, sandbox=confined)
    built = tmp_path / "cache" / "build" / "first.cubin"
    built.parent.mkdir(parents=True, exist_ok=True)
    built.write_text("machine code")
    assert Confined(worker, tmp_path, built)("read(path)", path=str(built)) == len("machine code")
    worker.end()


@NEEDS[FILES]
def test_files_outside_its_own_folder_are_out_of_reach(candidate: Confined) -> None:
    assert candidate("write('mine')") == 1 and candidate("read('mine')") == 1
    for path in (candidate.secret, Path.home() / ".bashrc", "/etc/passwd", f"/proc/{os.getpid()}/cmdline"):
        assert "Error" in str(candidate("read(path)", path=str(path))), path
    for path in ("/usr/new", sys.prefix + "/new", str(Path.home() / "new")):
        assert "Error" in str(candidate("write(path)", path=path)), path
    for path in (candidate.secret, candidate.secret.parent / "new"):
        candidate("write(path)", path=str(path))  # below /tmp, which is its own: whatever it writes is seen by nobody
    assert candidate.secret.read_text() == "{}" and not (candidate.secret.parent / "new").exists()


@NEEDS[FILES]
def test_an_installation_below_tmp_cannot_be_written(zygote: Zygote, code: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch" / "tmp").mkdir(parents=True)
    (tmp_path / "installed").mkdir()
    scratch = tmp_path / "scratch"
    worker = zygote.fork(
        "confined_entries:serve",
        Limits(wall_s=30),
        directory=scratch,
        sandbox=Sandbox(
            "candidate",
            readable=(str(code), str(tmp_path / "installed")),
            writable=(str(scratch),),
            temporary=str(scratch / "tmp"),
        ),
    )
    confined = Confined(worker, scratch, tmp_path / "receipt.json")
    assert "Error" in str(confined("write(path)", path=str(tmp_path / "installed" / "new")))
    assert confined("write(path)", path=str(scratch / "mine")) == 1
    worker.end()
    assert not (tmp_path / "installed" / "new").exists() and (scratch / "mine").exists()


@NEEDS[TEMPORARY]
def test_an_installation_reached_by_a_link_below_tmp_is_found_at_its_name(
    zygote: Zygote, code: Path, tmp_path: Path
) -> None:
    (tmp_path / "scratch" / "tmp").mkdir(parents=True)
    (tmp_path / "installed").mkdir()
    scratch = tmp_path / "scratch"
    links = [tmp_path / "linked", tmp_path / "installed" / "linked"]
    for link in links:
        link.symlink_to(Path(json.__file__).parent)
    worker = zygote.fork(
        "confined_entries:serve",
        Limits(wall_s=30),
        directory=scratch,
        sandbox=Sandbox(
            "candidate",
            readable=(str(code), str(tmp_path / "installed"), *map(str, links)),
            writable=(str(scratch),),
            temporary=str(scratch / "tmp"),
        ),
    )
    confined = Confined(worker, scratch, tmp_path / "receipt.json")
    for link in links:
        assert confined("read(path)", path=str(link / "__init__.py")) == 100
        assert "Error" in str(confined("write(path)", path=str(link / "new")))
    worker.end()


@NEEDS[FILES]
def test_what_kernels_need_is_within_reach(candidate: Confined) -> None:
    assert candidate("read('/proc/self/maps')") == 100 == candidate("read('/proc/cpuinfo')")
    assert candidate("len(os.listdir('/proc/self/task'))") == 1
    assert candidate("write('/dev/null')") == 1
    assert candidate("__import__('sqlite3').__name__") == "sqlite3"
    assert candidate("__import__('foundry.tools.process.channel').__name__") == "foundry"
    source = 'extern \\"C\\" int answer() { return 42; }'
    built = candidate(f'run("g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", "k.so", input="{source}")')
    assert built == [0, ""]
    assert candidate("ctypes.CDLL(os.path.abspath('k.so')).answer()") == 42


@NEEDS[SYSCALLS]
def test_there_is_no_network_and_no_way_to_a_local_service(candidate: Confined, tmp_path: Path) -> None:
    for family in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET"):
        assert "PermissionError" in candidate(f"socket.socket(socket.{family}).fileno()")
    import socket

    service = str(tmp_path / "service")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(service)
        listener.listen()
        assert "PermissionError" in candidate("connected(path)", path=service)
    assert candidate("len(socket.socketpair())") == 2


@NEEDS[NETWORK]
def test_its_network_namespace_has_no_way_out(candidate: Confined) -> None:
    assert candidate("os.readlink('/proc/self/ns/net')") != str(Path("/proc/self/ns/net").readlink())
    assert candidate("os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize") == 256 << 20
    mine = Path(f"/dev/shm/foundry-test-{os.getpid()}")
    mine.write_text("x")
    try:
        assert candidate("os.listdir('/dev/shm')") == []
    finally:
        mine.unlink()


@NEEDS[TEMPORARY]
def test_what_it_writes_to_tmp_goes_to_a_folder_of_its_own(candidate: Confined) -> None:
    name = f"my_build_{os.getpid()}"
    assert candidate("os.makedirs(f'/tmp/{name}') or write(f'/tmp/{name}/k.o')", name=name) == 1
    assert (candidate.scratch / "tmp" / name / "k.o").exists() and not Path("/tmp", name).exists()
    assert candidate("sorted(os.listdir(os.getcwd()))") == sorted(path.name for path in candidate.scratch.iterdir())


@X86_ONLY
@NEEDS[SYSCALLS]
def test_dangerous_calls_are_refused(candidate: Confined) -> None:
    pid = os.getpid()
    for number, *arguments in (
        [101, 16, pid, 0, 0],  # ptrace
        [310, pid, 0, 0, 0, 0, 0],  # process_vm_readv
        [298, 0, pid, -1, -1, 0],  # perf_event_open
        [272, 0x10000000],  # unshare
        [321, 0, 0, 0],  # bpf
        [425, 8, 0],  # io_uring_setup
        [250, 0, 0, 0],  # keyctl
        [203, pid, 8, 0],  # sched_setaffinity of another process
        [302, pid, 0, 0, 0],  # prlimit64 of another process
        [144, 0, 5, 0],  # sched_setscheduler
        [29, 0, 4096, 0o1600],  # shmget
        [157, 59, 1, 0, 0, 0],  # prctl: syscall user dispatch
        [56, 0x10000000 | 17, 0, 0, 0, 0],  # clone into a new user namespace
    ):
        assert candidate("call(*what)", what=[number, *arguments]) == EPERM, number
    own = "os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))"  # of its first thread by number: so it shows
    assert candidate(own) is None and candidate("resource.prlimit(os.getpid(), 7)")
    assert candidate("call(435, 0, 0)") == ENOSYS  # clone3: the C library falls back to clone
    assert candidate("os.getuid()") == os.getuid()


@NEEDS[SIGNALS]
def test_it_cannot_signal_others_and_cannot_leave_its_group(candidate: Confined) -> None:
    for pid in (os.getpid(), os.getppid(), 1):
        assert "PermissionError" in candidate("os.kill(pid, 0)", pid=pid)
    assert candidate("os.setsid()") is None
    assert candidate("os.getpgid(0) == os.getsid(0) == os.getpid()") is True


@NEEDS[CAPABILITIES]
def test_it_has_no_capabilities_and_gets_none(candidate: Confined) -> None:
    status = candidate("open('/proc/self/status').read()")
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status


def test_confining_costs_milliseconds(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    confined = Sandbox("candidate", writable=(str(tmp_path),), temporary=str(tmp_path / "tmp"))
    worker = zygote.fork("foundry.tools.process.sandbox:report", Limits(), directory=tmp_path, sandbox=confined)
    answer, _ = worker.request({})
    used_ns = cpu_ns(worker.pid)
    worker.end()
    assert answer["works"] == sandbox.ALL_USABLE and answer["active"] == HERE
    assert used_ns is not None and used_ns < 1e9 * START_CPU_S
    assert zygote.isolation == ("session", "limits", "environment", *HERE)


def test_a_task_loses_the_network_only(zygote: Zygote, tmp_path: Path) -> None:
    worker = zygote.fork("foundry.tools.process.sandbox:report", Limits(), sandbox=Sandbox("task"))
    active = worker.request({})[0]["active"]
    assert active == [name for name in (SYSCALLS,) if name in HERE] or NETWORK in active
    worker.end()


def test_a_compiler_reads_its_installation_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("int secret;")
    folder = tmp_path / "build"
    folder.mkdir()

    def compiled(source: str) -> str:
        argv = ["g++", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(folder / "k.so")]
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder)}
        done = run_command(
            argv, Limits(wall_s=30), cwd=folder, env=environment, stdin=source.encode(), confined_to=folder
        )
        return "" if done.returncode == 0 else done.output

    assert compiled("#include <vector>\nint f() { return std::vector<int>(3).size(); }") == ""
    if FILES in HERE:
        for source in (f'#include "{secret}"', f'asm(".incbin \\"{secret}\\"");', '#include "/etc/passwd"'):
            assert compiled(source), source
    with pytest.raises(FileNotFoundError):
        run_command(["no-such-compiler"], Limits(), confined_to=folder)


REFUSE_ALL = """
import errno, struct, sys
sys.path[:0] = []
from foundry.tools.process import linux
lines = [(0x20, 0, 0, 0)]
for number in (272, 165, 444, 445, 446, 317):
    lines += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EPERM)]
lines += [(0x15, 0, 3, 157), (0x20, 0, 0, 16), (0x15, 0, 1, 22), (0x06, 0, 0, 0x50000 | errno.EPERM)]
lines += [(0x06, 0, 0, 0x7FFF0000)]
linux.prctl(38, 1)
linux.install_filter(b"".join(struct.pack("=HBBI", *line) for line in lines))
"""


@X86_ONLY
@NEEDS[SYSCALLS]
def test_where_the_kernel_refuses_everything_work_goes_on() -> None:
    code = REFUSE_ALL + (
        "import json\n"
        "from foundry.tools.process import sandbox\n"
        "from foundry.tools.process.child import Limits, run_command\n"
        "from foundry.tools.process.sandbox import Sandbox\n"
        "from foundry.tools.process.zygote import Zygote\n"
        "from pathlib import Path\n"
        "warm = Zygote.start(threads=1, preload=['ctypes'], later=[])\n"
        "worker = warm.fork('foundry.tools.process.sandbox:report', Limits(), sandbox=Sandbox('candidate'))\n"
        "answer, _ = worker.request({})\n"
        "worker.end()\n"
        "warm.close()\n"
        "done = run_command(['g++', '--version'], Limits(), confined_to=Path('/tmp'))\n"
        "print(json.dumps([warm.isolation, answer, sandbox.available().refused, done.returncode]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    isolation, answer, refused, compiled = json.loads(done.stdout)
    assert isolation[:3] == ["session", "limits", "environment"]
    assert not {NETWORK, FILES, SIGNALS, SYSCALLS} & {*isolation, *answer["active"]}
    assert {NETWORK, FILES, SYSCALLS} <= set(refused) and "not permitted" in refused[NETWORK]
    assert answer["works"] and compiled == 0


def test_a_launcher_that_cannot_start_says_so(tmp_path: Path) -> None:
    orders = json.dumps(asdict(Orders(namespaces=False, files=False, program=program("task").hex())))
    argv = [sys.executable, "-I", "-S", sandbox.LAUNCHER, orders, str(tmp_path / "nothing")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 127 and "No such file" in done.stderr


@NEEDS[FILES]
def test_a_library_that_a_link_inside_an_installation_leads_to_is_readable(tmp_path: Path) -> None:
    (tmp_path / "installed").mkdir()
    (tmp_path / "driver").mkdir()
    (tmp_path / "installed" / "lib64").symlink_to(tmp_path / "driver")
    named = [str(tmp_path / "installed"), str(tmp_path / "installed" / "lib64"), str(tmp_path / "installed" / "bin")]
    assert sandbox._distinct(named) == named[:2]


TOOL = """
import json, socket, subprocess, sys
server = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen([*sys.argv[1:], str(server.getsockname()[1])])
print(server.accept()[0].makefile().readline())
child.wait()
"""
WATCHED = """
import json, socket, sys
def attempt(work):
    try:
        work()
        return "done"
    except OSError as error:
        return error.strerror
secret, port = sys.argv[1:]
found = {
    "secret": attempt(lambda: open(secret).read()),
    "maps": attempt(lambda: open("/proc/self/maps").read()),
    "outside": attempt(lambda: socket.create_connection(("192.0.2.1", 53), timeout=2.0)),
    "service": attempt(lambda: socket.socket(socket.AF_UNIX)),
    "own": attempt(lambda: open("mine", "w").close()),
}
plug = socket.create_connection(("127.0.0.1", int(port)))
plug.sendall((json.dumps(found) + chr(10)).encode())
"""


@NEEDS[NETWORK]
@NEEDS[FILES]
@NEEDS[SYSCALLS]
def test_a_tool_and_what_it_watches_reach_each_other_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "receipt.json").write_text("{}")
    scratch = tmp_path / "scratch"
    (scratch / "tmp").mkdir(parents=True)
    for name, text in (("tool.py", TOOL), ("watched.py", WATCHED)):
        (scratch / name).write_text(text)
    tool = [sys.executable, str(scratch / "tool.py")]
    watched = [sys.executable, str(scratch / "watched.py"), str(tmp_path / "receipt.json")]
    asked = Sandbox("candidate", writable=(str(scratch),), temporary=str(scratch / "tmp"))
    done = run_command(sandbox.confine_tool(tool, watched, asked, HERE), Limits(wall_s=20), cwd=scratch)
    found = json.loads(done.output.splitlines()[0])
    assert found["own"] == found["maps"] == "done", found
    assert found["secret"] in ("Permission denied", "No such file or directory")
    assert found["outside"] == "Network is unreachable" and found["service"] == "Operation not permitted"


@NEEDS[MEMORY]
def test_a_hidden_folder_is_seen_empty(tmp_path: Path) -> None:
    (tmp_path / "socket").write_text("")
    orders = Orders(files=False, hidden=(str(tmp_path), "/no/such/folder"))
    argv = [sys.executable, "-I", "-S", sandbox.LAUNCHER, json.dumps(asdict(orders)), "ls", "-A", str(tmp_path)]
    done = run_command(argv, Limits(wall_s=20))
    assert (done.returncode, done.output) == (0, "") and (tmp_path / "socket").exists()


NAMING = """
import os, threading
go = threading.Event()
thread = threading.Thread(target=go.wait)
thread.start()
for path in (f"/proc/self/task/{thread.native_id}/comm", "/proc/self/oom_score_adj", f"/proc/{os.getppid()}/task"):
    try:
        with open(path, "r+") as file:
            file.write("named")
        print("written")
    except OSError as error:
        print(error.strerror)
go.set()
"""


@NEEDS[FILES]
def test_only_threads_of_its_own_can_be_named_by_a_process_whose_driver_does_so() -> None:
    for is_allowed, said in ((False, "Permission denied"), (True, "written")):
        orders = Orders(readable=(*sandbox._SYSTEM, *sandbox._python()), thread_names=is_allowed)
        argv = [sys.executable, "-I", "-S", sandbox.LAUNCHER, json.dumps(asdict(orders)), sys.executable, "-c", NAMING]
        done = run_command(argv, Limits(wall_s=20))
        assert done.output.splitlines()[:2] == [said, "Permission denied"], done.output
        assert done.output.splitlines()[2] != "written"


@pytest.mark.gpu
@pytest.mark.skipif(not sandbox.NVIDIA_CONTROL.exists(), reason="there is no GPU")
def test_a_gpu_takes_nothing_from_the_sandbox(zygote: Zygote) -> None:
    assert {*zygote.isolation} == {*ALWAYS, *HERE}
