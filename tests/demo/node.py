"""A daemon of the demo's own, in a folder that vanishes with it, and the people and processes that talk to it."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY_SECONDS = 30
CALL_SECONDS = 120
END_SECONDS = 10


class Failed(Exception):
    """A step did not show what it should."""


class Person:
    """The user that runs a client, with the tenant by the daemon's rules, or an operator."""

    def __init__(self, uid, tenant=None):
        self.uid, self.tenant = uid, tenant

    def __str__(self):
        return f"uid {self.uid}, {self.tenant or 'operator'}"

    def identity(self):
        """Arguments for `subprocess` that make the child this user. Empty if it already is."""
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.uid, "extra_groups": []}


def people():
    """Three tenants if this process may become other users, else one that plays all parts."""
    team = [Person(20001, "team-a"), Person(20002, "team-b"), Person(20003, "team-c")]
    try:
        if os.geteuid() == 0 and subprocess.run(["true"], **team[0].identity()).returncode == 0:
            return team
    except (OSError, subprocess.SubprocessError):
        pass
    return [Person(os.geteuid(), "team-a")] * 3


class Node:
    """The daemon and its folder. A context: leaving it ends all that was started and removes the folder."""

    def __init__(self, programs, configured, prefix="vramd-demo-"):
        """`configured` returns the daemon's configuration for the folder that it is given."""
        # It removes itself when the interpreter ends, whatever happens before the context is entered.
        self.folder = tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp")
        self.home = pathlib.Path(self.folder.name)
        self.home.chmod(0o755)
        self.bin = self.home / "bin"
        self.bin.mkdir()
        for program in programs:
            shutil.copy(program, self.bin)
        self.config = self.home / "vramd.toml"
        self.config.write_text(configured(self.home))
        self.operator = Person(os.geteuid())
        self.children = []
        self.daemon = None
        self.log = self.home / "vramd.log"

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for child in [*self.children, self.daemon]:
            if child is not None:
                end(child)
        if isinstance(error, Exception) and self.log.exists():
            print(f"\nthe end of the daemon's log:\n{tail(self.log)}")
        self.folder.cleanup()

    def readable(self, file, users):
        """The file itself where all users can read it, else a copy that they can."""
        if all(subprocess.run(["test", "-r", str(file)], cwd="/", **u.identity()).returncode == 0 for u in users):
            return file
        copy = self.home / file.name
        shutil.copyfile(file, copy)
        copy.chmod(0o644)
        return copy

    def start(self):
        print(f"$ vramd --config {self.config} &", flush=True)
        with open(self.log, "wb") as log:
            # A session of its own, so that Ctrl-C reaches the demo alone, which then ends everything in order.
            self.daemon = subprocess.Popen(
                [self.bin / "vramd", "--config", self.config], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while self.call(self.operator, "status", quiet=True).returncode != 0:
            if self.daemon.poll() is not None:
                raise Failed(f"the daemon ended with status {self.daemon.returncode}")
            if time.monotonic() > deadline:
                raise Failed(f"the daemon was not ready within {READY_SECONDS} s")
            time.sleep(0.05)

    def stop(self):
        print(f"$ kill -TERM {self.daemon.pid}", flush=True)
        self.daemon.send_signal(signal.SIGTERM)
        if self.daemon.wait(timeout=CALL_SECONDS) != 0:
            raise Failed(f"the daemon ended with status {self.daemon.returncode}")
        left = sorted(path.name for path in (self.home / "run").glob("*.sock"))
        if left:
            raise Failed(f"the daemon left its sockets behind: {left}")

    def environment(self):
        return {**os.environ, "VRAMD_SOCKET_DIR": str(self.home / "run"), "HOME": str(self.home)}

    def call(self, person, *arguments, quiet=False, progress=False):
        """Runs `vramctl` to its end as this person, and shows the command and its output."""
        if not quiet:
            show(person, "vramctl", arguments)
        # Progress is drawn on a terminal only, so long work inherits this process's standard error.
        done = subprocess.run(
            [self.bin / "vramctl", *map(str, arguments)], cwd="/", env=self.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None if progress else subprocess.PIPE,
            text=True, timeout=CALL_SECONDS, **person.identity(),
        )
        if not quiet:
            print(done.stdout + (done.stderr or ""), end="", flush=True)
        return done

    def must(self, person, *arguments, **how):
        """Runs `vramctl` as `call` does. It must succeed."""
        done = self.call(person, *arguments, **how)
        if done.returncode != 0:
            raise Failed(f"vramctl {arguments[0]} ended with status {done.returncode}: {(done.stderr or '').strip()}")
        return done.stdout

    def ask(self, *arguments):
        """The JSON that `vramctl --json` prints for the operator."""
        return json.loads(self.must(self.operator, "--json", *arguments, quiet=True))

    def run(self, person, program, *arguments):
        """Runs another program to its end, which has to be a good one; what it printed."""
        show(person, program, arguments)
        done = subprocess.run(
            [self.bin / program, *map(str, arguments)], cwd="/", env=self.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=CALL_SECONDS, **person.identity(),
        )
        if done.returncode != 0:
            raise Failed(f"{program} ended with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def spawn(self, person, program, *arguments):
        """Starts a program that stays until its standard input ends."""
        show(person, program, [*arguments, "&"])
        child = subprocess.Popen(
            [self.bin / program, *map(str, arguments)], cwd="/", env=self.environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **person.identity(),
        )
        self.children.append(child)
        return child


def configuration(home, users, driver, memory_bytes):
    lines = [
        "[daemon]",
        f'socket_dir = "{home}/run"',
        f'state_dir = "{home}/state"',
        "",
        "[driver]",
        f'kind = "{driver}"',
        "",
        "[[driver.sim.devices]]",
        f"memory = {memory_bytes}",
    ]
    for user in {user.uid: user for user in users}.values():
        lines += ["", "[[tenants]]", f'tenant = "{user.tenant}"', f"uid = {user.uid}"]
    return "\n".join(lines) + "\n"


def show(person, program, arguments):
    print(f"[{person}]$ {program}", *arguments, flush=True)


def end(child):
    child.terminate()
    try:
        child.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def tail(path, lines=20):
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
