"""The import package refuses to be half of one distribution and half of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake._beside import refuse_beside_another


def test_alone_it_is_imported(tmp_path: Path) -> None:
    refuse_beside_another([str(tmp_path)], [str(tmp_path), str(tmp_path / "absent")])


@pytest.mark.parametrize(
    "name",
    [
        "mooncake_transfer_engine-0.3.13.dist-info",
        "mooncake_transfer_engine_non_cuda-0.3.13.post1.dist-info",
    ],
)
def test_beside_another_distribution_it_says_what_to_uninstall(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ImportError, match="pip uninstall mooncake-transfer-engine"):
        refuse_beside_another([], [str(tmp_path)])


def test_foreign_compiled_modules_in_its_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "store.cpython-311-x86_64-linux-gnu.so").touch()
    with pytest.raises(ImportError, match="both install the package"):
        refuse_beside_another([str(tmp_path)], [])
