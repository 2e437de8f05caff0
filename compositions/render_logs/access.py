"""Compute function `access`: a token becomes a request to the authority. It runs in a sandbox."""

import re
from typing import Any


def access(token: Any, authority: Any) -> dict[str, str]:
    """Make the request to `authority` (URL, static) for the rights of `token`.

    Returns:
        set `request`: one HTTP request.
    """
    secret = token.text().strip()
    # A line end in a token would start another header. The error does not show the token.
    if not re.fullmatch(r"[!-~]{1,4096}", secret):
        raise ValueError("a token must have 1 to 4096 visible ASCII characters")
    head = f"GET {authority.text()}/access HTTP/1.1\nauthorization: Bearer {secret}\n\n"
    return {"request": head}
