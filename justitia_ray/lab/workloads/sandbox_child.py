"""Run the Python program on standard input with limits; started by `sandbox` only.

This file imports only the standard library: it is run by path, isolated (`-I`), without this
package. Its arguments are the limits as JSON, and a file descriptor to which it writes the
protections that it could set, before the program runs. It consists of three processes:

    outer     enters new namespaces if allowed; waits for init and exits with its status
    init      process 1 of its namespace: when it ends, the kernel kills all others in it
    program   runs without privileges, under the limits
"""

import ctypes
import json
import os
import resource
import signal
import sys

_NEWUSER, _NEWNS, _NEWIPC, _NEWPID, _NEWNET = 0x10000000, 0x20000, 0x8000000, 0x20000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_NOBODY = 65534


def main(limits: dict[str, int], tell: int) -> None:
    """Read the program from standard input, set the protections, and run it."""
    source = sys.stdin.buffer.read()
    is_root = os.geteuid() == 0
    libc = ctypes.CDLL(None, use_errno=True)
    apart = libc.unshare(_NEWNET | _NEWPID | _NEWIPC | (_NEWNS if is_root else _NEWUSER)) == 0
    if apart:
        _await_child(os.fork(), libc)  # process 1 of a new PID namespace
        _await_child(os.fork(), libc)
    guards = {"network": apart, "leftovers": apart, "user": not is_root or _become_nobody(libc)}
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _set_limits(limits)
    os.write(tell, json.dumps(guards).encode())
    os.close(tell)
    exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})


def _await_child(child: int, libc: ctypes.CDLL) -> None:
    """Return in the child process; in the parent, wait for the child and exit with its status."""
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return
    os.closerange(0, 256)  # Readers of the outputs wait until the last process closes them.
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


def _become_nobody(libc: ctypes.CDLL) -> bool:
    """Switch from root to the user `nobody` if that user can read the standard library."""
    if not (_nobody_can_read() or _mount_library(libc)):
        return False
    os.chown(".", _NOBODY, _NOBODY)
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    return True


def _nobody_can_read() -> bool:
    library = os.path.join(sys.path[-1], "")
    os.seteuid(_NOBODY)
    readable = os.access(library, os.R_OK, effective_ids=True)
    os.seteuid(0)
    return readable


def _mount_library(libc: ctypes.CDLL) -> bool:
    """Bind-mount the interpreter's directory from root's home to a readable place.

    The mount is in a separate namespace and invisible to other processes.
    """
    shown = "/mnt/python"
    mounted = (
        libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        and libc.mount(b"none", b"/mnt", b"tmpfs", 0, b"mode=755") == 0
    )
    if not mounted:
        return False
    os.mkdir(shown)
    if libc.mount(os.fsencode(sys.base_prefix), os.fsencode(shown), None, _MS_BIND, None) != 0:
        return False
    of_packages = [getattr(module, "__path__", None) for module in list(sys.modules.values())]
    for paths in (sys.path, *(found for found in of_packages if isinstance(found, list))):
        paths[:] = [path.replace(sys.base_prefix, shown, 1) for path in paths]
    sys.path_importer_cache.clear()
    return _nobody_can_read()


def _set_limits(limits: dict[str, int]) -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
