"""A built wheel, without the source tree, has all it needs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from helpers import blobs, write_npz

ROOT = Path(__file__).parents[1]

pytest.importorskip("hatchling", reason="hatchling builds the wheel: pip install 'unflip[dev]'")
pytest.importorskip("build", reason="build drives hatchling: pip install 'unflip[dev]'")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    return folder


def python(installed: Path, cwd: Path, *args: str) -> str:
    """Run Python away from the source tree, with the wheel in front of everything."""
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "unflip/py.typed" in names
    assert "unflip/presets/features.toml" in names
    assert "unflip/reproduce/paper_numbers.toml" in names
    assert "unflip/report/templates/run.html" in names
    page = {f"unflip/review/static/{path.name}" for path in (ROOT / "src" / "unflip" / "review" / "static").iterdir()}
    assert len(page) > 5
    assert page <= set(names)
    assert "unflip/reproduce/grids/smoke/digits.toml" in names
    assert all(name.startswith(("unflip/", "unflip-")) for name in names)
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "unflip").rglob("*.py")}
    assert source <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_an_installed_wheel_finds_its_presets_and_trains_without_hugging_face(installed: Path, tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", **blobs())
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "import unflip\n"
        "from unflip.presets import preset_names\n"
        "run = unflip.train('a.npz', 'run', preset='features', epochs=1)\n"
        "print(unflip.__file__)\n"
        "print(','.join(preset_names()))\n"
        "print(run.result['epochs'])\n"
        "print(unflip.UnflipClassifier.__name__, 'datasets' in sys.modules)\n"
    )
    place, presets, epochs, imported = python(installed, tmp_path, "script.py").splitlines()
    assert Path(place).is_relative_to(installed)  # and not the editable install
    shipped = sorted(path.stem for path in (ROOT / "src" / "unflip" / "presets").glob("*.toml"))
    assert presets.split(",") == shipped
    assert epochs == "1"
    assert imported == "UnflipClassifier False"


def test_the_command_of_an_installed_wheel_lists_its_presets(installed: Path, tmp_path: Path) -> None:
    listed = python(installed, tmp_path, "-m", "unflip", "list", "presets")
    assert "features" in listed
    assert (installed / "bin" / "unflip").exists()
