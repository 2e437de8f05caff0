"""The page in a browser: what is shown, with hostile names, by keyboard, without errors."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from dandelion.cluster import Cluster, ClusterSettings
from dandelion.data import SetSpec
from dandelion.documents import python_function
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.set_values import item_set
from dandelion.tokens.file import write_tokens

from .guarded import record, token
from .prefix_proxy import PrefixProxy
from .served import SETTINGS, function

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install selenium")
if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
    pytest.skip("apt install chromium chromium-driver", allow_module_level=True)

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--window-size=1200,1000",
]
WAIT_S = 20
SPLIT = python_function(
    "def split(text):\n    return {'words': text.text().split()}\n",
    name="Split",
    entry="split",
    inputs=("text",),
    outputs=("words",),
)
SIZE = python_function(
    "def size(word):\n"
    "    if word.text().startswith('<'):\n"
    "        raise ValueError(word.text())\n"
    "    return str(len(word.text()))\n",
    name="Size",
    entry="size",
    inputs=("word",),
    outputs=("size",),
)
COUNT = python_function(
    "import json, logging\n\n"
    "def count(words):\n"
    "    print(words.text())\n"
    "    logging.warning('counted')\n"
    "    return {'found': json.dumps({'words': len(words.text().split())})}\n",
    name="Count",
    entry="count",
    inputs=("words",),
    outputs=(SetSpec("found", form="json"),),
)
TWICE = python_function(
    "import numpy\n\ndef twice(x):\n    return 2 * x.numpy()\n",
    name="Twice",
    entry="twice",
    inputs=("x",),
    outputs=("y",),
)
TEXT = """function Split(text) => (words);
function Size(word) => (size);
composition Sizes(text) => (sizes) {
    Split(text = all text) => (words = words);
    Size(word = each words) => (sizes = size);
}"""
HOSTILE = [
    f"{start}{number}{end}"
    for number in range(10)
    for start, end in (
        ("<script>window.hit=1</script>", ""),
        ("<img/src=x/onerror=window.hit=1>", ""),
        ('"><svg/onload=window.hit=1>', ""),
        ("javascript:window.hit=1//", ""),
        ("</pre><iframe/srcdoc=x>", ""),
        ("<style>*{display:none}", "\u202e"),
    )
]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(backends=("null", "process"), engines={"process": 1}, arena_bytes=64 << 20)
    cluster = Cluster(ClusterSettings("127.0.0.1:0", b"a secret of sixteen bytes"))
    with Node(settings, cluster=cluster) as started:
        assert started.wait_ready(60)
        started.register(SPLIT, SIZE, COUNT, TWICE, TEXT, function("echo", ("a",), ("b",)))
        yield started


@pytest.fixture(scope="module")
def url(node: Node) -> Iterator[str]:
    with BackgroundServer(node) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    env = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("browser"))}  # it leaves files
    service = webdriver.ChromeService(shutil.which("chromedriver"), env=env)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Page]:
    shown = Page(browser, url)
    yield shown
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
    assert browser.execute_script("return window.hit") is None


class Page:
    """The page as a user sees it."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser = browser
        self.url = url

    def open(self, path: str) -> None:
        """Load a view anew."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/{path}")

    def run(self, script: str) -> Any:
        """Run a script."""
        return self.browser.execute_script(script)

    @property
    def text(self) -> str:
        """All text of the view."""
        found: str = self.run("return document.body.innerText")
        return found

    def wait(self, what: Callable[[], object]) -> None:
        """Wait until something holds."""
        waiting = importlib.import_module("selenium.webdriver.support.wait")
        waiting.WebDriverWait(self.browser, WAIT_S, 0.05).until(lambda _: what())

    def shows(self, text: str) -> None:
        """Wait until a text is there."""
        self.wait(lambda: text in self.text)

    def keys(self, *keys: str) -> None:
        """Press keys."""
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()


def test_the_views(page: Page, node: Node) -> None:
    result = node.invoke_sets("Sizes", {"text": item_set("text", "one three")})
    page.open("")
    page.shows(result.id)
    page.open(f"#/invocations/{result.id}")
    page.shows("Timeline")
    page.wait(lambda: page.run("return document.querySelectorAll('.graph .ran').length") == 2)
    assert page.run("return document.querySelectorAll('.timeline rect').length") > 3
    page.open("#/functions")
    page.shows("Size")
    page.open("#/engines")
    page.shows("Tenant default")
    page.shows("process:0")
    page.open("#/catalogue")
    page.shows("Sizes")
    for fragment in ("#/nothing-like-this", "#/functions/%E0%A4%A"):
        page.open(fragment)
        page.shows("Invocations")
    page.open("#/catalogue/nothing")
    page.shows("no function 'nothing'")
    errors = page.browser.get_log("browser")
    assert all("404" in entry["message"] for entry in errors)


def test_new_invocations_appear(page: Page, node: Node) -> None:
    page.open("")
    page.shows("ended")
    result = node.invoke_sets("echo", {"a": item_set("a", "x")})
    page.shows(result.id)


def test_a_node_that_starts_anew_is_followed(browser: Any) -> None:
    def invoked(node: Node, times: int) -> list[str]:
        node.register(function("echo", ("a",), ("b",)))
        return [node.invoke_sets("echo", {"a": None}).id for _ in range(times)]

    with Node(SETTINGS) as node, BackgroundServer(node, drain_s=0) as server:
        before = invoked(node, 5)
        page = Page(browser, server.url)
        page.open("")
        page.shows(before[-1])
        port = int(server.url.rpartition(":")[2])
    with Node(SETTINGS) as node, BackgroundServer(node, port=port):
        (after,) = invoked(node, 1)
        page.shows(after)
        assert not any(one in page.text for one in before)
    browser.get_log("browser")  # no connection


def test_hostile_texts_are_shown_as_text(page: Page, node: Node) -> None:
    for text in HOSTILE:
        with pytest.raises(Exception, match="Size"):
            node.invoke("Sizes", text=f"<{text.replace(' ', '')}")
    page.open("")
    for text in HOSTILE:
        page.shows(text[:25])
    page.open("#/catalogue/echo")
    page.shows("Try it")
    for text in HOSTILE[:6]:
        page.run("document.querySelector('textarea').value = ''")
        page.browser.find_element("css selector", "textarea").send_keys(text.strip("\u202e"))
        page.browser.find_element("css selector", "main form button").click()
        page.shows(text.strip("\u202e")[:25])
    page.open(f"#/catalogue/{HOSTILE[0]}")
    page.shows("no function '<script>")
    page.browser.get_log("browser")  # 404
    assert page.run("return document.querySelectorAll('iframe, main script, main img').length") == 0


def test_json_results_and_what_functions_wrote_are_shown(page: Page, node: Node) -> None:
    page.open("#/catalogue/Count")
    page.shows("Try it")
    given = "<b>one</b> two three"
    page.browser.find_element("css selector", "textarea").send_keys(given)
    page.browser.find_element("css selector", "main form button").click()
    page.shows('{"words":3}')
    page.browser.find_element("css selector", "main [role=status] a").click()
    page.shows("Logs")
    cells = "return [...document.querySelectorAll('main table td')].map(cell => cell.textContent)"
    assert page.run(cells) == [
        "Count[0]", "stdout", given, "Count[0]", "warning", "WARNING:root:counted",
    ]  # fmt: skip


def test_arrays_can_be_tried(page: Page, node: Node) -> None:
    page.open("#/catalogue/Twice")
    page.shows("Try it")
    page.browser.find_element("css selector", "textarea").send_keys("[1, 2.5]")
    page.browser.find_element("css selector", "option[value=float32]").click()
    page.browser.find_element("css selector", "main form button").click()
    page.shows("[2,5]")


def test_errors_are_one_line_in_the_list(page: Page, node: Node) -> None:
    with pytest.raises(Exception, match="Size"):
        node.invoke("Sizes", text="<first")
    page.open("")
    page.shows("raised ValueError: <first")
    assert "Traceback" not in page.text


def test_ten_thousand_invocations(page: Page, node: Node) -> None:
    for _ in range(10_000):
        node.invoke_sets("echo", {"a": None})
    page.open("")
    page.wait(lambda: page.run("return document.querySelectorAll('tbody tr').length") == 100)
    page.browser.find_element("xpath", "//button[contains(., 'older')]").click()
    page.wait(lambda: page.run("return document.querySelectorAll('tbody tr').length") == 200)


def test_by_keyboard_alone(page: Page, node: Node) -> None:
    keys = webdriver.Keys
    page.open("")
    page.shows("ended")
    for wanted in ("Skip to content", "Invocations", "Functions"):
        page.keys(keys.TAB)
        assert page.run("return document.activeElement.textContent") == wanted
    page.keys(keys.ENTER)
    page.shows("since the node was started")
    assert page.run("return document.activeElement.id") == "view"
    page.open("#/catalogue/echo")
    page.shows("Try it")
    page.run("document.getElementById('view').focus()")
    page.keys(keys.TAB, keys.TAB, "typed", keys.TAB, keys.ENTER)  # type, text, button
    page.shows("typed")
    page.wait(lambda: "Invocation " in page.text)


def test_it_asks_for_a_token(browser: Any, node: Node, tmp_path: Any) -> None:
    path = tmp_path / "tokens.toml"
    write_tokens(path, [record("default")])
    plain = node.settings
    node.settings = msgspec.structs.replace(plain, tokens=str(path))
    try:
        with BackgroundServer(node) as server:
            page = Page(browser, server.url)
            page.open("")
            page.wait(lambda: page.run("return document.getElementById('login').open"))
            inputs = (("wrong", "not valid"), ("pasted\u200b", "not valid"))
            for given, shown in (*inputs, (token("default"), "ended")):
                field = browser.find_element("id", "token")
                field.clear()
                field.send_keys(given)
                browser.find_element("css selector", "#login button").click()
                page.shows(shown)
            page.wait(lambda: not page.run("return document.getElementById('login').open"))
            page.open("#/catalogue")
            page.shows("echo")
    finally:
        node.settings = plain
        browser.get_log("browser")  # 401


def test_it_works_below_a_path(browser: Any, node: Node) -> None:
    with BackgroundServer(node) as server, PrefixProxy(server.url) as proxy:
        page = Page(browser, proxy.url)
        page.open("")
        page.shows("ended")
        page.shows(node.invoke_sets("echo", {"a": item_set("a", "x")}).id)  # from the stream
        page.open("#/catalogue/Sizes")
        page.wait(lambda: page.run("return document.querySelector('#view img, #view svg')"))
        page.open("")
        browser.find_element("link text", "HTTP interface").click()
        page.shows("Invoke a function or composition")
        browser.get("about:blank")  # no stream is left
    errors = [e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert errors == []


def test_the_nodes_of_a_cluster_are_shown(page: Page, node: Node) -> None:
    info = node.cluster()
    assert info is not None
    page.open("#/cluster")
    page.wait(lambda: info.node in page.text and "this node" in page.text)
    node.invoke("Sizes", text="a bc")
    page.wait(lambda: "default" in page.text)  # by itself, within a second
