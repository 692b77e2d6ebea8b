"""Check that a wheel holds every module of the package and its data, and nothing else."""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(wheel: str) -> int:
    """Compare the wheel's files with the repository's; return the exit code."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {
        path.relative_to(ROOT).as_posix()
        for ending in ("py", "j2", "css")
        for path in (ROOT / "flower_kmeans").rglob(f"*.{ending}")
        if "strategies" not in path.parts
    }
    package |= {
        f"flower_kmeans/strategies/{path.name}" for path in (ROOT / "strategies").glob("*.py")
    }
    package.add("flower_kmeans/py.typed")
    code = {name for name in names if ".dist-info/" not in name}
    for name in sorted(package - code):
        print(f"missing in the wheel: {name}")
    for name in sorted(code - package):
        print(f"unexpected in the wheel: {name}")
    licensed = any(name.endswith("/LICENSE") for name in names)
    if not licensed:
        print("missing in the wheel: LICENSE")
    print(f"{len(code)} files of the package in {Path(wheel).name}")
    return int(code != package or not licensed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
