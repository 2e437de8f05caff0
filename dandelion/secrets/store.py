"""Keeps the secrets of a node."""

from __future__ import annotations

from pathlib import Path

from dandelion.errors import SecretMissing, nearest
from dandelion.secrets.file import Secrets, read_secrets


class SecretStore:
    """The secrets of all tenants. Safe from any thread.

    Args:
        path: of the file of secrets; empty if the node has none.

    Raises:
        InvalidInput: the file cannot be used.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._secrets: Secrets = read_secrets(Path(path)) if path else {}

    def __repr__(self) -> str:
        return f"SecretStore({self._path!r})"  # without the values

    def names(self, tenant: str) -> list[str]:
        """List the names of a tenant's secrets."""
        return sorted(self._secrets.get(tenant, {}))

    def value(self, tenant: str, function: str, name: str) -> bytes:
        """Give a secret.

        Raises:
            SecretMissing: the tenant has none of this name.
        """
        known = self._secrets.get(tenant, {})
        if name not in known:
            raise SecretMissing(function, name, nearest(name, known))
        return known[name]

    def reload(self) -> set[tuple[str, str]]:
        """Read the file again.

        Returns:
            Tenants and names of the secrets that are new, changed or gone.

        Raises:
            InvalidInput: the file cannot be used; the old secrets stay.
        """
        old, new = self._secrets, read_secrets(Path(self._path)) if self._path else {}
        self._secrets = new
        keys = {
            (tenant, name) for found in (old, new) for tenant in found for name in found[tenant]
        }
        return {
            (tenant, name)
            for tenant, name in keys
            if old.get(tenant, {}).get(name) != new.get(tenant, {}).get(name)
        }
