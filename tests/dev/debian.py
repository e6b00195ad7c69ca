"""Takes one file out of a package as Debian builds it, without being Debian or root.

    python3 tests/dev/debian.py PATH-IN-POOL SHA256 MEMBER TARGET

What is fetched must have that digest, so it does not matter who serves it. Nothing is left where anything fails.
"""

import hashlib
import io
import os
import sys
import tarfile
import urllib.request
from pathlib import Path

POOL = "http://deb.debian.org/debian/pool/main/"
TIMEOUT_S = 60
HEADER = 60


def members(archive: bytes):
    """Name and bytes of all that is in an archive of `ar`, which is what a package is."""
    if not archive.startswith(b"!<arch>\n"):
        raise ValueError("this is no package")
    at = 8
    while at + HEADER <= len(archive):
        name = archive[at : at + 16].decode().strip().rstrip("/")
        size = int(archive[at + 48 : at + 58])
        yield name, archive[at + HEADER : at + HEADER + size]
        at += HEADER + size + size % 2


def main(path: str, digest: str, member: str, target: Path) -> None:
    with urllib.request.urlopen(POOL + path, timeout=TIMEOUT_S) as answer:
        package = answer.read()
    if hashlib.sha256(package).hexdigest() != digest:
        raise ValueError(f"{path} is not what was pinned")
    data = next(data for name, data in members(package) if name.startswith("data.tar"))
    with tarfile.open(fileobj=io.BytesIO(data)) as tree:
        file = tree.extractfile(member)
        if file is None:
            raise ValueError(f"{member} is no file")
        content = file.read()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_bytes(content)
    part.chmod(0o755)
    os.replace(part, target)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:4], Path(sys.argv[4]))
    except (OSError, ValueError, KeyError, StopIteration, tarfile.TarError) as problem:
        sys.exit(f"debian: {sys.argv[1]}: {problem}")
