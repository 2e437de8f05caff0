"""Compute function `access`: a token becomes a question to the authority. It runs in a sandbox."""

import re
from typing import Any


def access(token: Any, authority: Any) -> dict[str, str]:
    """Ask `authority` (URL, static) what the holder of `token` may see.

    Returns:
        set `request`: one HTTP request.
    """
    secret = token.text().strip()
    # A line end in a token would become a header of its own. The token is not shown in the error.
    if not re.fullmatch(r"[!-~]{1,4096}", secret):
        raise ValueError("a token has 1 to 4096 visible ASCII characters")
    head = f"GET {authority.text()}/access HTTP/1.1\nauthorization: Bearer {secret}\n\n"
    return {"request": head}
