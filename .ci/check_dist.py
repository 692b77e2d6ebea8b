"""Check a source distribution and wheels: they hold what they should, and nothing else.

The first argument is the source distribution, the others are wheels, which must be
equal: one made from the source distribution, one from the repository.
"""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    ".ci",
    "benchmarks",
    "docs",
    "flower_kmeans",
    "simulations",
    "strategies",
    "tests",
)
FILES = ("*.cff", "*.in", "*.md", "*.toml", "*.yml", "LICENSE")
MADE = ("PKG-INFO", "setup.cfg")  # by setuptools, beside flower_kmeans.egg-info


def in_repository() -> set[str]:
    """Return the repository's files, without what runs leave."""
    files = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    files += [path for pattern in FILES for path in ROOT.glob(pattern)]
    return {
        path.relative_to(ROOT).as_posix()
        for path in files
        if "__pycache__" not in path.parts
    }


def in_package(names: set[str]) -> set[str]:
    """Return the files that a wheel holds; there the strategies are a folder of the package."""
    endings = (".py", ".j2", ".css", "/py.typed")
    inside = {
        f"flower_kmeans/{name}" for name in names if name.startswith("strategies/")
    }
    inside |= {name for name in names if name.startswith("flower_kmeans/")}
    return {name for name in inside if name.endswith(endings)}


def compared(archive: str, found: set[str], expected: set[str]) -> bool:
    """Print what an archive lacks, and what it should not hold."""
    for name in sorted(expected - found):
        print(f"missing in {archive}: {name}")
    for name in sorted(found - expected):
        print(f"unexpected in {archive}: {name}")
    print(f"{len(found)} files in {archive}")
    return found == expected


def main(source: str, *wheels: str) -> int:
    """Compare the files of all with the repository's; return the exit code."""
    expected = in_repository()
    with tarfile.open(source) as archive:
        names = {
            member.name.partition("/")[2] for member in archive if not member.isdir()
        } - set(MADE)
    names = {name for name in names if not name.startswith("flower_kmeans.egg-info/")}
    right = compared(Path(source).name, names, expected)
    contents = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist()})
        code = {name for name in contents[-1] if ".dist-info/" not in name}
        right &= compared(Path(wheel).name, code, in_package(expected))
        if not any(name.endswith("/LICENSE") for name in contents[-1]):
            print(f"missing in {Path(wheel).name}: LICENSE")
            right = False
    if any(other != contents[0] for other in contents):
        print("The wheels differ.")
        right = False
    return int(not right)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
