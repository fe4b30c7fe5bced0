"""System calls that a confined process may not make, as a seccomp program of classic BPF.

Forms: `task` is the user's own code, which loses the network and calls that administer the machine. `candidate` is
unreviewed code: it also cannot inspect, slow down or signal other processes, leave the process group in which it is
killed, or change the kernel's view of itself. `tool` is a candidate and a program that watches it, which talk over a
network of their own; `local tool` adds sockets in the file system, `open tool` all kinds of sockets. Refused calls
fail with EPERM; a few that honest tools make in passing do nothing and report success.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from collections.abc import Iterable, Sequence
from typing import Literal

Form = Literal["task", "candidate", "tool", "local tool", "open tool"]

# Numbers on x86-64 and on aarch64 (asm/unistd_64.h, asm-generic/unistd.h); -1: no such call.
_ADMINISTRATION: dict[str, tuple[int, int]] = {
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "unshare": (272, 97),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425),  # its queues make calls that this filter cannot see
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_OTHER_PROCESSES: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, -1),
    "seccomp": (317, 277),
    "capset": (126, 91),
    "landlock_restrict_self": (446, 446),
    "connect": (42, 203),  # a local socket may lead to a service with more rights
    "shmget": (29, 194),  # its memory belongs to no process, so no limit counts it
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
}
# Honest programs (ninja, Python's subprocess) move children to groups of their own; here all stay in one, so that one
# signal ends them.
_WITHOUT_EFFECT: dict[str, tuple[int, int]] = {"setsid": (112, 157), "setpgid": (109, 154), "setpriority": (141, 140)}
_SOCKET, _SENDTO = (41, 198), (44, 206)
_CLONE, _CLONE3 = (56, 220), (435, 435)
_PRCTL, _PERSONALITY = (157, 167), (135, 92)
_OWN_ONLY: dict[str, tuple[int, int]] = {"sched_setaffinity": (203, 122), "prlimit64": (302, 261)}
_SIGNALS: dict[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
_OTHER_SIGNALS: dict[str, tuple[int, int]] = {"tkill": (200, 130), "pidfd_send_signal": (424, 424)}

_AF_UNIX, _AF_INET = 1, 2
# A tool may connect, so it gets no sockets that lead to services of this machine. compute-sanitizer (2025.3) does not
# start without those of the file system; /run and /tmp, with their services, are hidden from it then.
_FAMILIES: dict[Form, list[int]] = {
    "task": [_AF_UNIX],
    "candidate": [_AF_UNIX],
    "tool": [_AF_INET],
    "local tool": [_AF_INET, _AF_UNIX],
}
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW* of clone(2)
_PRCTL_WITHOUT_EFFECT = (1, 4, 36)  # parent-death signal, dumpable, subreaper: needed to end this process
_PRCTL_REFUSED = (22, 26, 28, 35, 47, 59, 0x59616D61)  # seccomp, TSC, securebits, mm, ambient, dispatch, ptracer
_ANY_PERSONALITY = 0xFFFFFFFF  # reads the personality without changing it

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32 = 0x40000000

# BPF: load a word of seccomp_data, compare, return (linux/bpf_common.h).
_LOAD, _EQUAL, _BITS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000

Instruction = tuple[int, int, int, int]


@functools.lru_cache(maxsize=8)
def program(form: Form, *, only_signals_to: int = 0, own: int = 0) -> bytes:
    """The seccomp filter of a form as bytes, b"" on other architectures.

    `own` is the process id of the process that enters it: calls on its first thread by that number take effect. If
    `only_signals_to` is given, only that process may be signalled, for kernels whose Landlock does not confine
    signals.
    """
    found = _ARCHITECTURES.get(os.uname().machine)
    if found is None:
        return b""
    architecture, column = found
    refused = _Filter(column)
    refused.always(_ADMINISTRATION.values(), errno.EPERM)
    if form in _FAMILIES:
        refused.only_argument(_SOCKET, 0, _FAMILIES[form])
    if form != "task":
        is_tool = form.endswith("tool")
        calls = {name: numbers for name, numbers in _OTHER_PROCESSES.items() if not is_tool or name != "connect"}
        refused.always(calls.values(), errno.EPERM)
        refused.always(_WITHOUT_EFFECT.values(), 0)
        refused.new_namespaces()
        if form != "open tool":
            refused.candidate_rules(own)
        if only_signals_to:
            for numbers in _SIGNALS.values():
                refused.only_argument(numbers, 0, [0, only_signals_to])
            refused.always(_OTHER_SIGNALS.values(), errno.EPERM)
    head: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if column == 0:
        head += [(_AT_LEAST, 0, 1, _X32), _refuse(errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *line) for line in [*head, *refused.lines, (_RETURN, 0, 0, _ALLOW)])


class _Filter:
    """A list of filter rules; each leaves the call's number loaded or returns."""

    def __init__(self, column: int) -> None:
        """`column` chooses the rules of one form of sandbox; no instructions yet."""
        self._column = column
        self.lines: list[Instruction] = []

    def always(self, calls: Iterable[tuple[int, int]], error: int) -> None:
        """Makes calls fail with `error`; 0 reports success without doing anything."""
        for numbers in calls:
            self._rule(numbers, [_refuse(error)])

    def only_argument(self, numbers: tuple[int, int], index: int, values: Sequence[int]) -> None:
        """Refuses a call unless the low half of an argument has one of the values."""
        body: list[Instruction] = [(_LOAD, 0, 0, _low(index))]
        for value in values:
            body += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
        self._rule(numbers, [*body, _refuse(errno.EPERM)])

    def new_namespaces(self) -> None:
        """Refuses clone with a new namespace, and clone3."""
        self._rule(_CLONE, [(_LOAD, 0, 0, _low(0)), (_BITS, 0, 1, _NEW_NAMESPACES), _refuse(errno.EPERM), _allow()])
        # clone3's flags are in memory, which a filter cannot read: the C library falls back to clone.
        self._rule(_CLONE3, [_refuse(errno.ENOSYS)])

    def candidate_rules(self, own: int) -> None:
        """Adds the rules that hold for candidates but not for the user's task."""
        for numbers in _OWN_ONLY.values():
            self.only_argument(numbers, 0, sorted({0, own}))
        self.only_argument(_PERSONALITY, 0, [_ANY_PERSONALITY])
        address = _low(4)
        self._rule(
            _SENDTO,
            [
                (_LOAD, 0, 0, address),
                (_EQUAL, 0, 3, 0),
                (_LOAD, 0, 0, address + 4),
                (_EQUAL, 0, 1, 0),
                _allow(),
                _refuse(errno.EPERM),
            ],
        )
        option: list[Instruction] = [(_LOAD, 0, 0, _low(0))]
        for value in _PRCTL_WITHOUT_EFFECT:
            option += [(_EQUAL, 0, 1, value), _refuse(0)]
        for value in _PRCTL_REFUSED:
            option += [(_EQUAL, 0, 1, value), _refuse(errno.EPERM)]
        self._rule(_PRCTL, [*option, _allow()])

    def _rule(self, numbers: tuple[int, int], body: list[Instruction]) -> None:
        """Adds instructions for one system call, if the architecture has it."""
        number = numbers[self._column]
        if number >= 0:
            self.lines += [(_EQUAL, 0, len(body), number), *body]


def _low(index: int) -> int:
    """Offset of the low half of an argument, on a little-endian machine."""
    return _ARGUMENTS_AT + 8 * index


def _refuse(error: int) -> Instruction:
    """The instruction that makes a system call fail with the given errno."""
    return (_RETURN, 0, 0, _ERROR | error)


def _allow() -> Instruction:
    """The instruction that allows a system call."""
    return (_RETURN, 0, 0, _ALLOW)
