"""The small file system that stands in for a full disk."""

import pytest
from disks import SmallDisk

SIZE = 65_536


@pytest.mark.skipif(not SmallDisk.can_be_made(), reason="Root on Linux only may mount.")
def test_a_full_disk_takes_nothing_until_there_is_room(tmp_path):
    directory = tmp_path / "disk"
    with SmallDisk(directory, SIZE) as disk:
        disk.fill()
        with pytest.raises(OSError, match="No space left on device"):
            (directory / "more").write_bytes(b"x")
        (directory / "more").unlink(missing_ok=True)
        disk.make_room()
        (directory / "more").write_bytes(b"x")
        assert directory.stat().st_mode & 0o777 == 0o700
    assert list(directory.iterdir()) == []
