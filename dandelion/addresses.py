"""Which addresses the node may connect to for others.

Requests are written by untrusted functions and callers, but sent from inside the platform's
network. So only public addresses are reached, unless the operator allows others. The check is on
the **address** of a connection, after the name was resolved, and is repeated for every redirect: a
name in the tenant's own zone may point anywhere, and change at any time.

An address inside an address (IPv4 mapped into IPv6, 6to4, Teredo, NAT64) counts as the inner one,
since the packets go there.
"""

from __future__ import annotations

import ipaddress
from fnmatch import fnmatchcase
from typing import TypeAlias

import msgspec

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_BARRED = tuple(  # public by number, not by use, or not known as private to every Python
    map(ipaddress.ip_network, ("168.63.129.16", "192.0.0.0/24", "192.88.99.0/24", "fec0::/10"))
)


class Refused(Exception):
    """The request of an item is refused; the text says why."""


class AddressPolicy(msgspec.Struct, frozen=True):
    """Which addresses the node may connect to for others.

    Attributes:
        networks: in CIDR notation; their addresses may be reached.
        hosts: patterns of names, lower-case; any address of these names may be reached.
        public: whether public addresses may be reached.
        setting: by which the operator admits others, for errors.
    """

    networks: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    public: bool = True
    setting: str = ""

    @property
    def remedy(self) -> str:
        """End of a message: how a host that was refused can be admitted."""
        return f"; the operator can allow it with {self.setting}" if self.setting else ""

    def trusts(self, host: str) -> bool:
        """Tell whether a name may be reached at any address."""
        name = host.lower().rstrip(".")
        return any(fnmatchcase(name, pattern) for pattern in self.hosts)

    def admits(self, address: str) -> bool:
        """Tell whether an address, in numbers, may be reached."""
        try:
            outer = ipaddress.ip_address(address)
        except ValueError:
            return False
        inner = _innermost(outer)
        for network in map(ipaddress.ip_network, self.networks):
            if inner in network or outer in network:
                return True
        return self.public and _is_public(inner)

    def check_literal(self, host: str) -> None:
        """Check a host that is an address in numbers; names are left to their resolution.

        Raises:
            Refused: the address may not be reached, or is written in an ambiguous way.
        """
        if ":" not in host and not host.replace(".", "").isdigit():
            return
        if self.trusts(host):
            return
        if not self.admits(host):
            raise Refused(f"the address {host} may not be reached{self.remedy}")


def _is_public(address: Address) -> bool:
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return not any(address in network for network in _BARRED)


def _innermost(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64 or address in _COMPATIBLE:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if int(address) > 1 else address
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address
