"""Where NVIDIA's Triton Inference Server is on this machine, if it is.

It is a program on the PATH, as in NVIDIA's container, or in a virtual environment with the package
nvidia-pytriton, which the variable DANDELION_TRITON names. That package has the server and the
parts of its backend for Python, which have to be brought together:

- The backend runs each model in a process of a program, the *stub*, of which there is one for each
  version of Python. It has to be beside the backend's library and module, and executable.
- The stub loads the shared library of that Python, and finds packages only through the first
  ``python3`` on the PATH: it reads neither PYTHONPATH nor PYTHONHOME.
- The library is linked into its own folder, since its folder may have others, which would be found
  before those of PyTorch.
- The stub supports NumPy before version 2. With a later one all outputs of models are empty. So the
  package needs its own environment.

A named environment that lacks one of these is refused, even if there is a program on the PATH.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from dandelion.errors import DandelionError

PROGRAM = "tritonserver"
VARIABLE = "DANDELION_TRITON"
_THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
REMEDY = (
    f"python{_THIS} -m venv ~/triton && ~/triton/bin/pip install nvidia-pytriton torch; "
    f"export {VARIABLE}=~/triton"
)
_STUB = "triton_python_backend_stub"
_BESIDE = ("libtriton_python.so", "triton_python_backend_utils.py")


@dataclass(eq=False)
class TritonMissing(DandelionError):
    """There is no server that could be started."""

    why: str
    remedy: str = REMEDY

    def __str__(self) -> str:
        return f"not installed: {self.why}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class TritonInstall:
    """A server that can be started.

    Attributes:
        program: of the server.
        backend: files of its backend for Python, if they have to be brought together; all that
            follows is for that backend.
        library: of Python, which may be in any folder.
        library_folders, program_folders: where it finds further libraries and programs.
    """

    program: Path
    backend: tuple[Path, ...] = ()
    library: Path | None = None
    library_folders: tuple[Path, ...] = ()
    program_folders: tuple[Path, ...] = ()

    def command(self, folder: Path) -> list[str]:
        """Link its parts into a folder, and give the program with options that name them.

        The command itself sets variables, so that they are the server's alone: the program that
        starts it may be a Python with a shared library of the same name.
        """
        if self.library is None:
            return [str(self.program)]
        for file in self.backend:
            _link(file, folder / "backends" / "python")
        _link(self.library, folder / "lib")
        program = _link(self.program, folder / "bin")
        libraries = _prepend("LD_LIBRARY_PATH", folder / "lib", *self.library_folders)
        path = _prepend("PATH", *self.program_folders)
        return ["env", libraries, path, str(program), f"--backend-directory={folder / 'backends'}"]


def find_triton() -> TritonInstall:
    """Find the server: in the environment that is named, or else on the PATH.

    Raises:
        TritonMissing: there is none, or the environment lacks something.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return _in_environment(Path(named).expanduser().absolute())
    program = shutil.which(PROGRAM)
    if program is None:
        raise TritonMissing(f"no {PROGRAM} on the PATH")
    return TritonInstall(Path(program))


def missing_triton() -> str:
    """Say why there is no server, and the remedy; empty if there is one."""
    try:
        find_triton()
    except TritonMissing as error:
        return str(error)
    return ""


def _in_environment(home: Path) -> TritonInstall:
    found = sorted(
        home.glob("lib/python3.*/site-packages"),
        key=lambda path: int(path.parent.name.partition(".")[2] or 0),
    )
    if not found:
        raise _refused(home, "is no virtual environment")
    packages = found[-1]
    package = packages / "pytriton" / "tritonserver"
    program = package / "bin" / PROGRAM
    if not program.is_file():
        raise _refused(home, "lacks the package nvidia-pytriton")
    version = packages.parent.name.removeprefix("python")
    stub = package / "python_backend_stubs" / version / _STUB
    if not stub.is_file():
        raise _refused(home, f"is of Python {version}, for which nvidia-pytriton has no stub")
    if version != _THIS and not _versions(packages, "dandelion_engine"):
        why = f"is of Python {version}, and models could not import from this {_THIS}"
        raise _refused(home, why)
    _check_numpy(home, packages)
    return TritonInstall(
        program,
        (stub, *(package / "backends" / "python" / name for name in _BESIDE)),
        _python_library(home, version),
        (packages / "nvidia_pytriton.libs",),  # a copied program does not find them itself
        (home / "bin",),
    )


def _refused(home: Path, why: str, remedy: str = REMEDY) -> TritonMissing:
    return TritonMissing(f"{home}, which {VARIABLE} names, {why}", remedy)


def _versions(packages: Path, name: str) -> list[str]:
    """List the versions of a package, from the names of its folders of metadata."""
    found = packages.glob(f"{name}-*.dist-info")
    return [path.name.removeprefix(f"{name}-").removesuffix(".dist-info") for path in found]


def _check_numpy(home: Path, packages: Path) -> None:
    found = _versions(packages, "numpy")
    remedy = f"{home}/bin/pip install 'numpy<2'"
    if not found:
        raise _refused(home, "lacks NumPy", remedy)
    if any(int(version.partition(".")[0]) >= 2 for version in found):
        why = f"has NumPy {found[0]}, with which all outputs of models are empty"
        raise _refused(home, why, remedy)


def _python_library(home: Path, version: str) -> Path:
    """Find the shared library of the Python installation that the environment was made from."""
    name = f"libpython{version}.so.1.0"
    bases = [(home / "bin" / "python3").resolve().parent.parent]
    if (settings := home / "pyvenv.cfg").exists():  # if the program was copied
        pairs = (line.partition("=") for line in settings.read_text().splitlines())
        bases += [Path(value.strip()).parent for key, _, value in pairs if key.strip() == "home"]
    for base in bases:
        for folder in (base / "lib", base / "lib64", *base.glob("lib/*-linux-gnu")):
            if (folder / name).exists():
                return folder / name
    why = f"is of a Python without {name}"
    remedy = f"make it with one that has it (apt install libpython{version}, or --enable-shared)"
    raise _refused(home, why, remedy)


def _link(file: Path, folder: Path) -> Path:
    """Link a file into a folder, or copy it there if it is a program that is not executable."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / file.name
    if file.suffix or os.access(file, os.X_OK):
        place.symlink_to(file)
    else:
        shutil.copyfile(file, place)
        place.chmod(0o755)
    return place


def _prepend(name: str, *folders: Path) -> str:
    """Put folders before the value of a variable here, as the program `env` takes it."""
    before = os.environ.get(name)
    return f"{name}=" + os.pathsep.join([*map(str, folders), *([before] if before else [])])
