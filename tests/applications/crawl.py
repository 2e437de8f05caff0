"""A crawl: fetch pages, find their links, go on with the new ones."""

from html.parser import HTMLParser
from urllib.parse import urljoin

import dandelion as dd


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if tag == "a" and name == "href"]


@dd.function
def request(url: str) -> dict[str, bytes]:
    return {url: f"GET {url} HTTP/1.1\n\n".encode()}


@dd.function(outputs=["new", "seen"])
def follow(pages: list[dd.Item], seen: list[str]) -> tuple[list[str], list[str]]:
    found = set()
    for page in pages:
        parser = Links()
        parser.feed(page.text())
        found |= {urljoin(page.name, link) for link in parser.found}
    new = sorted(found.difference(seen))
    return new, sorted({*seen, *new})


@dd.composition
def visit(urls, seen):
    pages = dd.http(dd.each(request(dd.each(urls)))).bodies
    followed = follow(pages, seen)
    return {"urls": followed.new, "seen": followed.seen}


@dd.composition
def crawl(start):
    visited = visit(start, start).repeat(10, feed=["urls", "seen"], until="urls")
    return {"pages": visited.seen}
