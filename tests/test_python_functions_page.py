"""docs/python-functions.md: its programs run, and print what the text says."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parent.parent / "docs/python-functions.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("program", "expected"), PROGRAMS)
def test_programs_of_the_page(
    program: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, str(path), "exec"), names)
    assert capsys.readouterr().out == expected


def test_the_page_has_programs() -> None:
    assert PROGRAMS
