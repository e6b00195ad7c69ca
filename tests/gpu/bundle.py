#!/usr/bin/env python3
"""Packs what a machine with a GPU and no toolchain needs into target/gpu-bundle/: programs, kernels, demo and `run`.

The programs need the libc of Debian 12 and no more: one that was linked to a newer one is refused here.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "target" / "gpu-bundle"
GLIBC_MINOR_MAX = 36
# Of each package the programs that travel.
BUILD = ["cargo", "build", "--release", "--config", 'profile.release.strip="symbols"']
PROGRAMS = {
    "vramd": ["--bin", "vramd"],
    "vramctl": ["--bin", "vramctl"],
    "broker-driver": ["--bin", "contract-cuda"],
    "vramd-tests": ["--bin", "gpu-suite", "--bin", "bench-rpc", "--bin", "bare"],
    "core-bench": ["--bin", "core-bench"],
    "vramd-client": ["--example", "scratch", "--example", "compute", "--example", "torch_share"],
    "vramd-preload": ["--lib"],
}
# The artefacts that are no programs: the torch cases load one, and `vramctl run` finds the other beside itself.
LIBRARIES = {"libtorch_share.so": "torch", "libvramd_preload.so": "bin"}
# Packages that are tried or measured beside ours where there is PyTorch: their wheels, and the files that are needed.
PEERS = {
    "torch_memory_saver==0.0.10": "786e18755a9af255ae692b0e19a62ff06861dbf55a19fa8545e62a100ab5a28f",
    "rmm-cu13==26.10.0": "93b82fc2a9e7ff3de4a872db864c90badbd32ac6a50536c02767a782b87e2cd8",
    "librmm-cu13==26.10.0": "39edcc7396f5291e95331089909b1e13e445fa2dbd4e7323992fb29fb04a5a1b",
    # Of Python 3.12.
    "fastsafetensors==0.5.0": "cf8085203d83abbf2ea37edfb4b007cf1de521ab1cd29b46935f611d68c80d7d",
    "runai-model-streamer==0.17.1": "2dd7b4dd5bc6b0c0dd2cfc875a32af40a5dd408db8026374e93ca34f8039321f",
    "humanize==4.17.0": "02d0899527760efe18011944f882df4970943b4cdff7b5a0ba7fed43a576ef98",
    "rapids-logger==0.3.0": "9d9094dd241c4e0f2d0c3bad448871e62f9b915e1ef65db41b0a1cf4473b1066",
}
PEER_FILES = re.compile(
    r"torch_memory_saver_hook_mode_torch_cu1[23]\.|[^/]*\.dist-info/|([^/]*\.data/purelib/)?[a-z_]+/(?!include/|lib64/cmake/)"
)
MATURIN = ROOT / ".tools" / "python-venv" / "bin" / "maturin"


def main():
    programs = build()
    wheel = build_package()
    peers = fetch_peers()
    shutil.rmtree(BUNDLE, ignore_errors=True)
    for folder in ("bin", "kernels", "demo", "torch"):
        (BUNDLE / folder).mkdir(parents=True)
    for program in programs:
        check_glibc(program)
        shutil.copy(program, BUNDLE / LIBRARIES.get(program.name, "bin"))
    for kernel in [*ROOT.glob("sdk-rust/examples/kernels/*"), *ROOT.glob("tests/gpu/kernels/*")]:
        shutil.copy(kernel, BUNDLE / "kernels")
    for module in ROOT.glob("tests/demo/*.py"):
        shutil.copy(module, BUNDLE / "demo")
    for program in ("torch_share.py", "torch_model.py", "torch_saver.py", "torch_stream.py", "torch_weights.py", "torch_pool.py", "torch_large.py", "torch_turns.py", "array_libraries.py", "preload.py", "checkpoint.py"):
        shutil.copy(ROOT / "tests/gpu" / program, BUNDLE / "torch")
    with zipfile.ZipFile(wheel) as package:
        # A folder for PYTHONPATH: there may be no pip where it goes.
        package.extractall(BUNDLE / "python")
    for peer in peers:
        with zipfile.ZipFile(peer) as package:
            package.extractall(BUNDLE / "peers", filter(PEER_FILES.match, package.namelist()))
    for folder in (BUNDLE / "peers").glob("*.data/purelib"):
        shutil.copytree(folder, BUNDLE / "peers", dirs_exist_ok=True)
        shutil.rmtree(folder.parent)
    for folder in ("python", "peers"):
        for module in (BUNDLE / folder).rglob("*.so"):
            check_glibc(module)
    shutil.copy(ROOT / "tests/gpu/run.py", BUNDLE / "run")
    (BUNDLE / "build.json").write_text(json.dumps(origin(), indent=2) + "\n")
    size = sum(file.stat().st_size for file in BUNDLE.rglob("*") if file.is_file())
    print(f"{BUNDLE.relative_to(ROOT)}: {size / (1 << 20):.1f} MiB; where there is a GPU: run [--quick] FOLDER")


def build():
    command = [*BUILD, *(word for package in PROGRAMS for word in ("-p", package)), *sum(PROGRAMS.values(), [])]
    print("$", *command, flush=True)
    # Cargo writes messages for people to standard error, and the paths of the programs to standard output.
    told = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
    )
    artifacts = [json.loads(line) for line in told.stdout.splitlines()]
    files = [pathlib.Path(file) for artifact in artifacts for file in artifact.get("filenames", [])]
    programs = [pathlib.Path(artifact["executable"]) for artifact in artifacts if artifact.get("executable")]
    return [*programs, *(file for file in files if file.name in LIBRARIES)]


def build_package():
    """The Python package as a wheel, for every Python from 3.11 on."""
    if not MATURIN.exists():
        sys.exit(f"{MATURIN} is missing: run tests/dev/install-tools")
    # A folder of its own, so that an older wheel is not taken for it. The libc is checked here, with that of the programs.
    out = pathlib.Path(tempfile.mkdtemp(prefix="vramd-wheel-", dir=ROOT / "target"))
    command = [
        MATURIN, "build", "--release", "--strip", "--auditwheel", "skip", "--out", out,
        "--manifest-path", ROOT / "sdk-python" / "Cargo.toml",
    ]
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
    [wheel] = out.glob("*.whl")
    return wheel


def fetch_peers():
    out = pathlib.Path(tempfile.mkdtemp(prefix="peer-", dir=ROOT / "target"))
    wanted = out / "wanted.txt"
    wanted.write_text("".join(f"{peer} --hash=sha256:{digest}\n" for peer, digest in PEERS.items()))
    command = [
        MATURIN.with_name("python"), "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:",
        "--python-version", "3.12",
        "--dest", out, "--requirement", wanted,
    ]
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
    return sorted(out.glob("*.whl"))


def check_glibc(program):
    needs = glibc_minor(program)
    if needs > GLIBC_MINOR_MAX:
        sys.exit(f"{program.name} needs glibc 2.{needs}, and Debian 12 has 2.{GLIBC_MINOR_MAX}: build it there")


def glibc_minor(program):
    """The newest 2.N whose symbols a program is linked to."""
    return max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", program.read_bytes())), default=0)


def origin():
    def said(*command):
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    return {
        "commit": said("git", "rev-parse", "HEAD"),
        "changed_since": bool(said("git", "status", "--porcelain", "--untracked-files=no")),
        "rustc": said("rustc", "--version"),
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
