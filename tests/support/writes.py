"""The ways in which a program writes to a file, each as a shell script; and files of all kinds for them to write to.

Which of them reach other names of the same file, when it has some, depends on the program: `through` says it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

IDENTITY = "GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b"

MISSING = "missing"
"""In place of the exit status of a write whose programs are not there."""

SAMPLES: Mapping[str, str] = {
    "plain": r"""
        seq 100 > text.txt; seq 200 > other.txt; head -c 100000 /dev/zero > zeros
        printf '#!/bin/sh\necho run\n' > run.sh; chmod 755 run.sh; echo fixed > fixed.txt; chmod 444 fixed.txt
        ln -s text.txt link; echo twin > twin-a; ln twin-a twin-b; mkdir -p dir/deep; echo x > dir/deep/file
        ln -s dir folder""",
    "python": r"""
        printf 'X = 1\n' > module.py; python -c 'import py_compile; py_compile.compile("module.py")'
        python -c 'import sqlite3; db = sqlite3.connect("data.db"); db.execute("create table t (x)"); db.commit()'
        mkdir project project/src; printf 'Y = 1\n' > project/src/sample_project.py; cd project
        printf '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n' > pyproject.toml
        cat > backend.py <<'END'
import os, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name, about = "sample_project-1-py3-none-any.whl", "sample_project-1.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("sample_project.pth", os.path.abspath("src") + "\n")
        wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: sample-project\nVersion: 1\n")
        wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(about + "RECORD", "")
    return name
END""",
    "packed": r"""
        mkdir packed; sed 's/^50$/fifty/' text.txt > packed/text.txt; diff -u text.txt packed/text.txt > patch.diff || :
        tar -cf pack.tar -C packed text.txt; cd packed; python -m zipfile -c ../pack.zip text.txt""",
    "repo": r"""
        git init -q --template= repo; cd repo; seq 10 > tracked; git add tracked; git commit -qm one
        seq 20 > tracked; git add tracked; git commit -qm two; git diff HEAD~1 > ../repo.diff""",
    "code": r"""
        if command -v gcc && command -v ar; then
            printf 'int f(void) { return 1; }\n' > code.c; gcc -g -c code.c; ar rc lib.a code.o
            printf 'int f(void); int main(void) { return f(); }\n' > main.c; gcc -g -c main.c; gcc -o prog main.o code.o
            printf 'int f(void) { return 2; }\n' > code.c; gcc -g -c -o newer.o code.c
        fi""",
    "ninja": r"""
        printf 'rule copy\n  command = cp $in $out\nbuild built.txt: copy text.txt\n' > build.ninja
        if command -v ninja; then ninja; ninja -t recompact; touch text.txt; fi""",
}
"""What makes files of each kind, in the current folder. Nothing comes from the network."""


class Write(NamedTuple):
    """A way to write, done in a folder with all the samples."""

    script: str
    through: bool = True
    """Whether those see it who have the same file by another hard link."""
    needs: tuple[str, ...] = ()
    """Programs that not every machine has."""
    kind: str = "plain"
    """Of the samples that it needs beside the plain ones."""


def python(code: str, *, through: bool = True, kind: str = "plain") -> Write:
    """A write by Python."""
    return Write(f"python -c {shlex.quote(code)}", through, kind=kind)


def node(code: str) -> Write:
    """A write by Node, in which agents are written."""
    return Write(f"node -e {shlex.quote(code)}", needs=("node",))


PIP = f"{shlex.quote(sys.executable)} -m pip --disable-pip-version-check --python $VIRTUAL_ENV/bin/python"

WRITES: Mapping[str, Write] = {
    # Programs of Python's and Node's
    "open for writing": python('open("text.txt", "w").write("new")'),
    "open for appending": python('open("text.txt", "a").write("new")'),
    "open for update": python('file = open("text.txt", "r+"); file.seek(10); file.write("new")'),
    "shutil.copy2": python('import shutil; shutil.copy2("other.txt", "text.txt")'),
    "os.truncate": python('import os; os.truncate("text.txt", 5)'),
    "os.replace": python('import os; os.replace("other.txt", "text.txt")', through=False),
    "os.setxattr": python('import os; os.setxattr("text.txt", "user.sample", b"new")'),
    "os.utime": python('import os; os.utime("text.txt", (1, 1))'),
    "mmap": python('import mmap; file = open("zeros", "r+b"); mmap.mmap(file.fileno(), 0)[50000:50003] = b"new"'),
    "sendfile": python(
        'import os; a, b = open("other.txt", "rb"), open("text.txt", "r+b"); os.sendfile(b.fileno(), a.fileno(), 0, 50)'
    ),
    "a second name in /proc": python('f = open("text.txt"); open(f"/proc/self/fd/{f.fileno()}", "w").write("new")'),
    "sqlite": python(
        'import sqlite3; db = sqlite3.connect("data.db"); db.execute("insert into t values (1)").connection.commit()',
        kind="python",
    ),
    "compileall": Write(
        "echo 'X = 2' > newer.py; mv newer.py module.py; python -m compileall -qf .", through=False, kind="python"
    ),
    "pip install -e": Write(
        f"{PIP} install -q --no-deps --no-index -e project; test -e $VIRTUAL_ENV/lib/*/*/sample_project.pth",
        through=False,
        kind="python",
    ),
    "writeFileSync": node('require("fs").writeFileSync("text.txt", "new")'),
    "appendFileSync": node('require("fs").appendFileSync("text.txt", "new")'),
    # The shell, and what every machine has
    "redirection": Write("echo new > text.txt"),
    "appending redirection": Write("echo new >> text.txt"),
    "a forced write to a file for reading": Write("chmod u+w fixed.txt; echo new > fixed.txt"),
    "cp": Write("cp other.txt text.txt"),
    "cp -a": Write("cp -a other.txt text.txt", through=False),
    "cp --remove-destination": Write("cp --remove-destination other.txt text.txt", through=False),
    "tee": Write("echo new | tee text.txt"),
    "sed -i": Write("sed -i s/1/one/ text.txt", through=False),
    "sed -i --follow-symlinks": Write("sed -i --follow-symlinks s/1/one/ link", through=False),
    "perl -i": Write("perl -pi -e s/1/one/ text.txt", through=False, needs=("perl",)),
    "dd": Write("echo new | dd of=text.txt conv=notrunc bs=1 seek=20 status=none"),
    "truncate": Write("truncate -s 7 text.txt"),
    "fallocate": Write("fallocate --punch-hole -o 0 -l 4096 text.txt", needs=("fallocate",)),
    "mv over a file": Write("mv other.txt text.txt", through=False),
    "ln -f": Write("ln -f other.txt text.txt", through=False),
    "ln -sf": Write("ln -sfn /etc/passwd text.txt; ln -sfn / folder", through=False),
    "a new hard link, written through": Write("ln text.txt third; echo new >> third"),
    "an old hard link, written through": Write("echo new >> twin-a"),
    "a link, written through": Write("echo new >> link; echo new >> folder/deep/file"),
    "chmod": Write("chmod 600 text.txt"),
    "chmod -R": Write("chmod -R a-w dir text.txt; chmod 000 run.sh"),
    "chown": Write('chown "$(id -u):$(id -g)" text.txt', through=False),
    "touch": Write("touch -d 2001-02-03 text.txt"),
    "install": Write("install -m 755 other.txt text.txt", through=False),
    "a renamed folder": Write("mv dir renamed; echo new >> renamed/deep/file"),
    "a folder that becomes a file": Write("rm -r dir; echo new > dir", through=False),
    "rm -r": Write("rm -r dir text.txt", through=False),
    "a pipe in place of a file": Write("rm text.txt; mkfifo text.txt", through=False),
    "vim": Write("ex -sc '%s/1/one/|wq' text.txt", needs=("ex",)),
    # Archives, patches, version control
    "tar -x": Write("tar -xf pack.tar", through=False, kind="packed"),
    "tar -x --overwrite": Write("tar -xf pack.tar --overwrite", kind="packed"),
    "tar -r": Write("tar -rf pack.tar other.txt", kind="packed"),
    "unzip": Write("unzip -qo pack.zip", through=False, needs=("unzip",), kind="packed"),
    "patch": Write("patch -s text.txt < patch.diff", through=False, needs=("patch",), kind="packed"),
    "rsync": Write("rsync --ignore-times other.txt text.txt", through=False, needs=("rsync",)),
    "rsync --inplace": Write("rsync --inplace --ignore-times other.txt text.txt", needs=("rsync",)),
    "git checkout": Write("git -C repo checkout -q HEAD~1", kind="repo"),
    "git apply": Write("cd repo; git apply -R ../repo.diff", through=False, kind="repo"),
    "git commit": Write("cd repo; echo new >> tracked; git commit -qam three", kind="repo"),
    "git gc": Write("git -C repo gc -q --prune=now", through=False, kind="repo"),
    # Compilers and builders
    "gcc -o": Write("gcc -o prog main.c newer.o", through=False, needs=("gcc",), kind="code"),
    "gcc -c": Write("gcc -c code.c", through=False, needs=("gcc",), kind="code"),
    "ld -r": Write("ld -r -o code.o newer.o", through=False, needs=("gcc", "ld"), kind="code"),
    "ar": Write("cp newer.o second.o; ar r lib.a second.o", needs=("gcc", "ar"), kind="code"),
    "ranlib": Write("ar d lib.a code.o; ranlib lib.a", needs=("gcc", "ar", "ranlib"), kind="code"),
    "strip": Write("strip prog", needs=("gcc", "strip"), kind="code"),
    "objcopy": Write("objcopy --strip-debug code.o", needs=("gcc", "objcopy"), kind="code"),
    "patchelf": Write("patchelf --set-rpath /new prog", needs=("gcc", "patchelf"), kind="code"),
    "ninja": Write("ninja -d explain", needs=("ninja",), kind="ninja"),
    # Beside the worktree
    "the virtual environment": Write("echo new >> $VIRTUAL_ENV/pyvenv.cfg; chmod 700 $VIRTUAL_ENV"),
    "the home": Write('echo new >> "$HOME/.profile"; rm "$HOME/.bash_env"'),
}
"""By names for people."""


def name_folder(name: str) -> str:
    """The folder of its own in which a write is done, of letters that no program trips over."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def make_samples_script(names: Iterable[str] = tuple(WRITES)) -> str:
    """Makes below the current folder one with samples for each of these writes, and a copy of each with the same."""
    steps = [f"export {IDENTITY}; top=$PWD; mkdir kinds samples"]
    for kind, script in SAMPLES.items():
        first = "mkdir" if kind == "plain" else "cp -a plain"
        steps.append(f'cd "$top/kinds"; {first} {kind}; cd {kind}; {script}')
    steps.append('cd "$top"')
    steps += [f"cp -a kinds/{WRITES[name].kind} samples/{name_folder(name)}" for name in names]
    return "\n".join(steps)


def make_write_script(name: str) -> str:
    """Does one write, in the folder that `make_samples_script` made for it."""
    return f"export {IDENTITY}; cd samples/{name_folder(name)}; {WRITES[name].script}"


def make_all_script(output: str) -> str:
    """Does every write whose programs are there, and says in a file of a folder how each ended."""
    steps = [f"output={output}"]
    for name, write in WRITES.items():
        has = " && ".join(f"command -v {program} > /dev/null" for program in write.needs) or "true"
        do = f"sh -ec {shlex.quote(make_write_script(name))} < /dev/null && status=0 || status=$?"
        steps.append(f"if {has}; then {do}\nelse status={MISSING}; fi; echo $status > $output/{name_folder(name)}")
    return "\n".join(steps)


def do_here(script: str, folder: Path, venv: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Run one of these scripts on this machine, with nothing between it and the files."""
    path = f"{venv}/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    env = {"PATH": path, "VIRTUAL_ENV": str(venv), "HOME": str(home), "LANG": "C.UTF-8"}
    return subprocess.run(
        ["/bin/sh", "-ec", script], cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
