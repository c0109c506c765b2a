"""The program that runs code of unknown origin (sandbox.py): locks itself in, reads the code from stdin, runs it.

Run as a script by an isolated interpreter; it imports nothing of ninfer. Exit codes: NO_ROOM when it could not lock
itself in and ran nothing, SIGNALLED + n when signal n ended the code, else the code's own.
"""

import ctypes
import os
import resource
import signal
import sys

NO_ROOM = 97
SIGNALLED = 128

CPU_S = 5
MEMORY_BYTES = 512 << 20
FILE_BYTES = 1 << 20
MAX_FILES = 64

# linux/sched.h: user, network, mount, IPC and process; linux/prctl.h
_NAMESPACES = 0x10000000 | 0x40000000 | 0x00020000 | 0x08000000 | 0x20000000
_PR_SET_PDEATHSIG = 1


def lock_in() -> None:
    """Return as the first process of a room; the process that called stays outside and hands on how that one ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NAMESPACES) != 0:
        os._exit(NO_ROOM)
    first = os.fork()
    if first:
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        os._exit(code if code >= 0 else SIGNALLED - code)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limits = (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_CORE, 0),
    )
    for what, most in limits:
        resource.setrlimit(what, (most, most))


if __name__ == "__main__":
    code = sys.stdin.read()
    lock_in()
    exec(compile(code, "answer", "exec"), {"__name__": "__main__"})
