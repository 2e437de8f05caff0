"""Imports of functions: available modules, refusals at registration, late imports."""

from __future__ import annotations

import pkgutil
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from dandelion.backends.process import modules
from dandelion.backends.process.cores import ProcessDriver
from dandelion.backends.process.engine import ProcessEngine

from dandelion.errors import InvalidFunction, Raised
from tests.python_functions import first, function, process_engine, run


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


def standard_library() -> Iterator[str]:
    """All modules of the standard library, by their files; none is imported."""
    left = [(Path(sysconfig.get_path("stdlib")), "")]
    while left:
        folder, prefix = left.pop()
        for found in pkgutil.iter_modules([str(folder)], prefix):
            if found.name.split(".")[0] in sys.stdlib_module_names:
                yield found.name
                if found.ispkg:
                    left.append((folder / found.name.rpartition(".")[2], f"{found.name}."))


def statements() -> Iterator[tuple[str, str, list[str]]]:
    """Import statements: their text, and what `modules.missing` is asked of them."""
    for name in sorted({*sys.stdlib_module_names, *standard_library(), *modules.ALWAYS}):
        yield f"import {name}", name, []
        package, _, part = name.rpartition(".")
        if package and package != "encodings":  # encodings are looked up by name
            yield f"from {package} import {part}", package, [part]


IMPORT = """
def f(x):
    failed = []
    for statement in x.text().splitlines():
        try:
            exec(statement, {})
        except ImportError:
            failed.append(statement)
    return ", ".join(failed)
"""


def test_what_registration_accepts_of_the_standard_library_is_there(engine: ProcessEngine) -> None:
    accepted = [
        text for text, name, parts in statements() if not [*modules.missing(name, parts, ())]
    ]
    assert {"import logging", "from xml.etree import ElementTree"} <= {*accepted}
    assert first(run(engine, function(IMPORT), "\n".join(accepted))).text() == ""


@pytest.mark.parametrize(
    ("statement", "imports", "refused"),
    [
        ("import logging, json, os.path, xml.etree.ElementTree, numpy.linalg", "", ""),
        ("from xml.etree import ElementTree", "", ""),
        ("import sqlite3", "", "sqlite3"),
        ("import logging.handlers", "", "logging.handlers"),
        ("from logging import handlers", "", "logging.handlers"),
        ("from xml.dom import minidom", "", "xml.dom"),
        ("from xml.dom import minidom", "xml.dom.minidom", ""),
        ("import subprocess", "", "subprocess"),
        ("import numpy.random", "", "numpy.random"),
        ("import numpy.random", "numpy", ""),
        ("from email.mime.text import MIMEText", "email", ""),
        ("from PIL.PngImagePlugin import PngInfo", "PIL.Image", ""),
        ("import PIL.ImageFilter", "PIL.Image", "PIL.ImageFilter"),
        ("import PIL.ImageFilter", "PIL.*", ""),
        ("import PIL", "PIL.Image", ""),
    ],
)
def test_registration_refuses_what_is_not_there(statement: str, imports: str, refused: str) -> None:
    found = []
    try:
        ProcessDriver().checker().check([function(f"{statement}\ndef f(x): pass", imports=imports)])
    except InvalidFunction as error:
        found = [(problem.code, problem.expected) for problem in error.problems]
    hint = f"imports=['{refused}'] with the function"
    assert found == ([("undeclared-import", hint)] if refused else [])


LATE = {
    "email": """
        import email
        from email.message import EmailMessage
        message = EmailMessage()
        message["Subject"] = "für"
        message.set_content("hällo")
        message.add_attachment(b"abc", maintype="image", subtype="png")
        assert email.message_from_bytes(message.as_bytes())["Subject"]
    """,
    "xml.dom.minidom, xml.sax": """
        import xml.dom.minidom, xml.sax
        xml.dom.minidom.parseString("<a><b/></a>").toprettyxml()
        xml.sax.parseString("<a><b/></a>", xml.sax.ContentHandler())
    """,
    "sqlite3": """
        import sqlite3
        base = sqlite3.connect(":memory:")
        base.execute("create table t(a)")
        base.executemany("insert into t values(?)", [(i,) for i in range(1000)])
        assert base.execute("select sum(a) from t order by random()").fetchall() == [(499500,)]
    """,
    "zoneinfo": """
        import datetime, zoneinfo
        summer = datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Zurich"))
        assert summer.utcoffset() == datetime.timedelta(hours=2)
        assert "Asia/Tokyo" in zoneinfo.available_timezones()
        try:
            zoneinfo.ZoneInfo("Europe/Nowhere")
        except zoneinfo.ZoneInfoNotFoundError:
            pass
    """,
    "tarfile, zipfile": """
        import io, tarfile, zipfile
        for mode in "w:gz", "w:bz2", "w:xz":
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode=mode) as archive:
                archive.addfile(tarfile.TarInfo("a"), io.BytesIO(b""))
            file.seek(0)
            assert tarfile.open(fileobj=file).getnames() == ["a"]
        for method in zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA:
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", method) as archive:
                archive.writestr("a", b"b")
            assert zipfile.ZipFile(file).read("a") == b"b"
    """,
    "argparse": """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--a", type=int)
        assert parser.parse_args(["--a", "1"]).a == 1
        parser.format_help()
    """,
    "": """
        import csv, decimal, gzip, io, json, logging
        assert gzip.decompress(gzip.compress(b"a")) == b"a"
        assert list(csv.reader(io.StringIO("1,2"))) == [["1", "2"]]
        assert json.loads(json.dumps({"a": [1]})) and decimal.Decimal(1) / 3
        logging.basicConfig()
        logging.getLogger("f").warning("heard %s", 1)
    """,
    "encodings.gbk": """
        assert "a".encode("gbk") == b"a"
    """,
}


@pytest.mark.parametrize("imports", LATE)
def test_declared_modules_work_though_they_load_parts_late(
    engine: ProcessEngine, imports: str
) -> None:
    body = textwrap.indent(textwrap.dedent(LATE[imports]), "    ")
    assert run(engine, function(f"def f(x):\n{body}", imports=imports), b"") == (None,)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "ICO", "PPM"])
def test_pictures_of_all_formats_are_read_and_written(engine: ProcessEngine, kind: str) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    fn = function(
        """
        def f(x):
            import io
            from PIL import Image
            file = io.BytesIO()
            Image.new("RGB", (16, 16), (200, 0, 0)).save(file, x.text())
            with Image.open(io.BytesIO(file.getvalue())) as picture:
                red, _, _ = picture.convert("RGB").resize((1, 1)).getpixel((0, 0))
                return f"{picture.format} {190 < red < 210}"
        """,
        imports="PIL.Image",
    )
    assert first(run(engine, fn, kind)).text() == f"{kind} True"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that loads its parts late; one of them cannot be loaded."""
    name = f"package_{tmp_path.name}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "late.py").write_text("VALUE = 'late'")
    (folder / "broken.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_package_can_be_declared_with_all_its_modules(package: str) -> None:
    fn = function(
        f"def f(x):\n    from {package} import late\n    return late.VALUE", imports=f"{package}.*"
    )
    ProcessDriver().checker().check([fn])
    with process_engine() as engine:
        assert first(run(engine, fn, b"")).text() == "late"
    with pytest.raises(InvalidFunction, match="no module"):
        ProcessDriver().checker().check([function("def f(x): pass", imports=f"{package}.late.*")])


def test_a_part_that_is_not_there_says_how_to_declare_it(package: str) -> None:
    with process_engine() as engine:
        for body in (f"from {package} import late", f"import {package}.late"):
            with pytest.raises(Raised) as caught:
                run(engine, function(f"def f(x):\n    {body}", imports=package), b"")
            assert f"imports=['{package}.late']" in str(caught.value)
            assert f"imports=['{package}.*']" in str(caught.value)


def test_an_encoding_that_is_not_there_says_how_to_declare_it(engine: ProcessEngine) -> None:
    with pytest.raises(Raised, match=r"imports=\['encodings.gbk'\]"):
        run(engine, function("def f(x):\n    'a'.encode('gbk')"), b"")
