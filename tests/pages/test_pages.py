"""Every snippet of every page runs as it stands, and prints what the page shows."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.errors import Conflict
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings

from .command_server import command_server
from .reader import PageError, Reader
from .snippets import Snippet, agrees, commands, snippets

ROOT = Path(__file__).resolve().parent.parent.parent
OWN_TESTS = {
    "docs/bson.md": "tests/node/test_bson_registration.py",
    "docs/io-functions.md": "tests/node/test_stores.py",
    "docs/kserve.md": "tests/node/test_kserve_documents.py",
    "docs/language.md": "tests/test_specification.py",
    "docs/torch.md": "tests/test_torch_docs.py",
    "docs/triton.md": "tests/test_triton_docs.py",
}
"""Pages whose examples need more than a reader has: other services, libraries, protocols."""
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("compositions/*.md")]
    if str(path.relative_to(ROOT)) not in OWN_TESTS and list(snippets(path.read_text()))
)


@contextlib.contextmanager
def served() -> Iterator[tuple[Node, str]]:
    settings = Settings(
        backends=("null", "process", "http", "opencl"),
        engines={"process": 2},
        options={"http": {"allow": "127.0.0.1"}},
        arena_bytes=256 << 20,
    )
    with Node(settings) as node, BackgroundServer(node) as server:
        yield node, server.url


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Node, str]]:
    """The node of all pages that do not show versions, and its URL."""
    with served() as node_and_url:
        yield node_and_url


@pytest.fixture
def url(page: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a node where nothing is registered."""
    if "breaks callers" in (ROOT / page).read_text():  # versions of a name are not used again
        with served() as (_, address):
            yield address
        return
    node, address = request.getfixturevalue("shared")
    yield address
    while records := node.catalog.records():
        for record in records:
            with contextlib.suppress(Conflict):  # a composition uses it, and is removed first
                node.remove(type(record), record.name)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a quick command `dandelion`."""
    with command_server(tmp_path_factory.mktemp("programs")) as folder:
        yield folder


@pytest.mark.timeout(300)  # a page has many commands, and the machine may be busy
@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of(page: str, url: str, programs: Path, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    if re.search(r"^(\$ )?curl ", text, re.MULTILINE) and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    reader = Reader(page, tmp_path, url, programs)
    try:
        for snippet in snippets(text):
            reader.read(snippet)
        reader.finish()
    finally:
        reader.close()


def test_other_pages_have_tests_of_their_own() -> None:
    for page, test in OWN_TESTS.items():
        assert Path(page).name in (ROOT / test).read_text(), page


# --- the reader itself --------------------------------------------------------------------------


def read(text: str, folder: Path, url: str = "http://127.0.0.1:1") -> None:
    reader = Reader("page", folder, url)
    try:
        for snippet in snippets(text):
            reader.read(snippet)
        reader.finish()
    finally:
        reader.close()


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```",
        "```python\nraise KeyError\n```",
        "```sh\necho a\n```\n\n```text\nb\n```",
        "```sh\nno-such-program\n```",
        "```console\n$ echo a\nb\n```",
        "```text\nprinted by nothing\n```",
        "```json\n{]\n```",
        "```toml\nport = 'x'\n```",
        "```toml\nport = \n```",
        "```dandelion\ncomposition\n```",
        "```cobol\n```",
        "```\nimport this\n```",
        "```sh\nexit 3\n```\n\n```python\nx = 1\n```",
        "```sh\ndandelion serve --no-such-option\n```",
        "<!-- skip: reason -->\n```python\nx = (\n```",
        "<!-- run: python\n1 / 0\n-->",
    ],
)
def test_a_page_that_is_wrong(page: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"page:\d+: "):
        read(page, tmp_path)


def test_a_page_that_is_right(tmp_path: Path) -> None:
    read(
        """
<!-- run: python
hidden = 3
-->
```python
print(hidden)
```

```text
3
```

```sh title="f.sh"
echo from a file
```

```sh
mkdir inner && cd inner
export WORD=kept
```

- a list
  ```console
  $ bash ../f.sh; echo $WORD \\
    $PWD
  from a file
  kept .../inner
  ```

<!-- skip: needs a device -->
```python
import no_such_module
```
""",
        tmp_path,
    )


def test_parts_of_pages() -> None:
    assert list(snippets('a\n```c title="k.c"\nx\n```\n')) == [Snippet("c", "k.c", "x\n", 3)]
    assert list(commands("$ a \\\n b\nc\n$ d\n")) == [("a \\\n b", "c\n"), ("d", "")]
    assert agrees("a ... c", "a  b  c  \n")
    assert agrees("...\nb\n...", "b")
    assert agrees("a\n...\n──", "a\nb\nc\n─────")
    assert not agrees("a...c", "ab\nc")
    assert not agrees("a.c", "abc")
    assert not agrees("", "x")
    assert re.match("page:1", str(PageError("page", Snippet("c", "", "", 1), "m")))
