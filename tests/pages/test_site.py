"""The site is built without a warning, and its generated pages are those of the code."""

from __future__ import annotations

import configparser
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dandelion.cli.parser import make_parser
from dandelion.cli.settings import load_settings
from dandelion.errors import DandelionError
from dandelion.failures import KINDS
from dandelion.settings import Settings

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
DEPLOY = DOCS / "deploy"
reference = importlib.import_module("docs.reference_pages")


# --- generated pages ----------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["errors.md", "settings.md"])
def test_a_generated_page_is_that_of_the_code(file: str) -> None:
    wanted = dict(reference.pages())[file]
    assert (DOCS / file).read_text("utf-8") == wanted, "run: make docs"


def test_every_kind_of_error_is_on_the_page() -> None:
    page = (DOCS / "errors.md").read_text()
    classes: dict[str, type[DandelionError]] = reference.error_classes()
    assert KINDS.keys() <= classes.keys()
    assert {"Raised", "NoRoute", "KeptFull", "WrongUsage"} <= classes.keys()
    for name, cls in classes.items():
        (section,) = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", page, re.M | re.S)
        assert "**Cause:** " in section, name
        assert "**What to do:** " in section, name
        assert f"Status {cls.status};" in section or name == "ApplicationFailed"


def test_an_error_without_advice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(reference.ADVICE, "Raised")
    with pytest.raises(KeyError, match="Raised"):
        reference.errors_page()


def test_every_setting_is_in_the_table() -> None:
    page = (DOCS / "settings.md").read_text().partition("## Quotas")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.M))
    for field in msgspec.structs.fields(Settings):
        shown = rows[field.name].replace("`", "").replace("\\|", "|")
        if field.name not in {"catalog"} and shown != "none":
            environment = {f"DANDELION_{field.name.upper()}": shown}
            assert getattr(load_settings(None, environment, {}), field.name) == field.default


# --- links --------------------------------------------------------------------------------------


_FENCED = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(\s*([^)\s]+)")


def prose(page: Path) -> str:
    """Return a page without its snippets and code, with the same lines."""
    text = _FENCED.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
    return re.sub(r"`[^`\n]*`\]", "]", text)


def anchors(page: Path) -> set[str]:
    """List the anchors of a page's headings, as a code host makes them."""
    text = _FENCED.sub("", page.read_text())
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    }


def broken_links(page: Path, seen: dict[Path, set[str]]) -> list[str]:
    """List the relative links of a page to files or anchors that do not exist."""
    broken = []
    text = prose(page)
    for found in _LINK.finditer(text):
        path, _, anchor = found[1].partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if anchor and target.suffix == ".md" and target.exists() and target not in seen:
            seen[target] = anchors(target)
        if not target.exists() or (anchor and anchor not in seen.get(target, set())):
            broken.append(f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}: {found[1]}")
    return broken


def test_links_on_a_code_host() -> None:
    seen: dict[Path, set[str]] = {}
    pages = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "compositions").rglob("*.md")]
    assert len(pages) > 45
    assert [link for page in pages for link in broken_links(page, seen)] == []


def test_a_broken_link_is_found_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n\n## Two `code`\n\n[here](#two-code) [page](page.md#one) [web](https://x)\n"
        "```text\n[no](link.md)\n```\n[none](none.md)\n[`part`](#three)\n"
    )
    assert broken_links(page, {}) == ["page.md:9: none.md", "page.md:10: #three"]


def build(target: Path, docs: Path = DOCS) -> subprocess.CompletedProcess[str]:
    """Build the site of a copy of the documents into a folder."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=docs.parent,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    target = tmp_path_factory.mktemp("site")
    built = build(target)
    assert built.returncode == 0, built.stderr
    return target


def test_the_site_has_all_pages_and_a_search(site: Path) -> None:
    names = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in DOCS.glob("*.md")} <= names
    assert {"architecture", "security", "changelog", "compositions"} <= names
    assert "ZeroDivisionError" in (site / "search/search_index.json").read_text()
    api = (site / "api.html").read_text()
    for name in ("dandelion.node.Node.invoke", "dandelion.decorators.function"):
        assert f'id="{name}"' in api, name


def test_the_site_needs_no_other_host(site: Path) -> None:
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(?:https?:)?//|<link[^>]*"
        r"(?:stylesheet|preconnect|icon)[^>]*href=[\"']?(?:https?:)?//|@import"
    )
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), page


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    sources = tmp_path / "docs"
    sources.mkdir()
    (sources / "index.md").write_text("[no page](none.md) [no part](index.md#none)\n")
    config = (ROOT / "mkdocs.yml").read_text()
    config = re.sub(r"^nav:.*", "", config, flags=re.M | re.S).replace("  - docs/site_links.py", "")
    config = config.replace("hooks:\n", "").replace("extra_css: [site.css]\n", "")
    config = re.sub(r"^  - mkdocstrings:\n(?:    .*\n)*", "", config, flags=re.M)
    (tmp_path / "mkdocs.yml").write_text(config)
    broken = build(tmp_path / "site", sources)
    assert broken.returncode != 0
    assert "none.md" in broken.stderr
    assert "#none" in broken.stderr


# --- files for deployments ----------------------------------------------------------------------


def test_the_settings_of_a_service() -> None:
    assert load_settings(DEPLOY / "node.toml", {}, {}).catalog == "sqlite:/var/lib/dandelion"


def test_the_unit_of_systemd(tmp_path: Path) -> None:
    text = (DEPLOY / "dandelion.service").read_text()
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names have capitals
    unit.read_string(text)
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    parsed = make_parser().parse_args(arguments)
    assert parsed.verb == "serve"
    assert int(unit["Service"]["TimeoutStopSec"]) > parsed.drain
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / "dandelion.service"
    copy.write_text(text.replace(program, shutil.which("true") or "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    about = [line for line in verified.stderr.splitlines() if "dandelion" in line]
    assert not about
    assert verified.returncode == 0, verified.stderr


def test_the_container_file() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    steps: dict[str, list[str]] = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        steps.setdefault(word, []).append(rest)
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"}
    assert steps.keys() == known | {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    from_sources = [step for step in steps["COPY"] if not step.startswith("--from=build ")]
    for copied in from_sources:
        *sources, _ = copied.split()
        for source in sources:
            assert (ROOT / source).exists(), source
    assert steps["USER"] == ["dandelion"]
    decode: Callable[[str], Any] = msgspec.json.decode
    assert decode(steps["ENTRYPOINT"][0]) == ["dandelion"]
    assert make_parser().parse_args(decode(steps["CMD"][0])).verb == "serve"
    packages = {line.split()[0] for line in steps["COPY"]}
    mapped = re.findall(
        r'^"dandelion(?:\.\w+)?" = "(\w+)"$', (ROOT / "pyproject.toml").read_text(), re.M
    )
    assert set(mapped) <= packages


@pytest.mark.parametrize("file", sorted(p.name for p in DEPLOY.iterdir()))
def test_every_file_is_explained(file: str) -> None:
    assert f"deploy/{file}" in (DOCS / "deploying.md").read_text()
