"""A program for a job that makes the system calls which a sandbox refuses, and prints each answer."""

from __future__ import annotations

PROGRAM = """
import ctypes, errno, fcntl, mmap, os, sys, tempfile

libc = ctypes.CDLL(None, use_errno=True)

def call(*words):
    answer = libc.syscall(*map(ctypes.c_long, words))
    return -ctypes.get_errno() if answer < 0 else answer

page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53 89f8 89f3 87ca cd80 5b c3"))  # int 0x80, with the words in registers
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
call_as_i386 = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 4)(address)

kinds = {
    "x86_64": (call, 248, 249, 250, 16, [72]),
    "aarch64": (call, 217, 218, 219, 29, [25]),
    "i386": (call_as_i386, 286, 287, 288, 54, [55, 221]),
}
writer, path = tempfile.mkstemp()
os.close(writer)
descriptor = os.open(path, os.O_RDONLY)

def tell(name, answer):
    print(name, errno.errorcode[-answer] if answer < 0 else "works")

make, add_key, request_key, keyctl, ioctl, controls = kinds[sys.argv[1]]
tell("add_key", make(add_key, 0, 0, 0))
tell("request_key", make(request_key, 0, 0, 0))
tell("keyctl", make(keyctl, 0, -3, 1))  # KEYCTL_GET_KEYRING_ID of the session
for request in 0x50009417, 0x541B:  # BTRFS_IOC_SNAP_CREATE_V2, FIONREAD
    tell("ioctl", make(ioctl, -1, request, 0))
for control in controls:
    tell("lease", make(control, descriptor, 1024, fcntl.F_RDLCK))
    tell("delegation", make(control, descriptor, 1040, 0))
    tell("flags", make(control, descriptor, fcntl.F_GETFD, 0))
"""

ANSWERS = {
    kind: "add_key EPERM\nrequest_key EPERM\nkeyctl EPERM\nioctl EPERM\nioctl EBADF\n"
    + "lease EPERM\ndelegation EPERM\nflags works\n" * controls
    for kind, controls in (("x86_64", 1), ("aarch64", 1), ("i386", 2))
}
"""What it prints in a sandbox when it is told to make the calls of one kind of program."""
