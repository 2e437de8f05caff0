"""The expected result: the page of a reader, from the servers' data, without any request."""

from __future__ import annotations

from html import escape
from http import HTTPStatus
from string import Template

from .world import LogServer, World

PAGE = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>$topic for $reader</title>
<h1>$topic for $reader</h1>
<p>$answered of $all servers answered.</p>
$sections</html>
""")
LOG = Template("<section>\n<h2>$name</h2>\n<pre>\n$log</pre>\n</section>\n")
FAILED = Template('<section class="failed">\n<h2>$name</h2>\n<p>$status</p>\n</section>\n')


def page(world: World, token: str, topic: str) -> str:
    """Return the expected page for a token."""
    reader = world.readers[token]
    return PAGE.substitute(
        topic=escape(topic),
        reader=escape(reader.name),
        answered=sum(server.status == 200 for server in reader.servers),
        all=len(reader.servers),
        sections="".join(section(server, topic) for server in reader.servers),
    )


def section(server: LogServer, topic: str) -> str:
    """Return the page's section for one server."""
    name = escape(server.name)
    if server.status == 200:
        return LOG.substitute(name=name, log=escape(server.log(topic)))
    status = HTTPStatus(server.status)
    return FAILED.substitute(name=name, status=f"{status.value} {status.phrase}")
