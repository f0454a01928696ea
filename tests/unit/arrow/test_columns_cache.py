"""Where the compiled kernel is cached: code is run from there."""

import os

from coterie.arrow.folders import own_folder


def test_a_fresh_folder_is_made_for_us_alone(tmp_path):
    folder = tmp_path / "cache"

    assert own_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_is_not_trusted(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)

    assert not own_folder(folder)


def test_a_link_is_not_trusted(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    os.symlink(tmp_path / "real", tmp_path / "cache")

    assert not own_folder(tmp_path / "cache")
