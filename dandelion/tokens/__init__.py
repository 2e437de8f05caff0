"""Bearer tokens: which tenant a caller is, and what it may do.

A token is 256 random bits that its owner sends with each request. The node has a file with the
SHA-256 of each token, its tenant and its rights (`file`). `table` finds a token and counts its
requests, `watch` reads the file again when it has changed.

**Why SHA-256, and no slow hash.** A slow hash protects passwords: there are few likely ones, so an
attacker with the hashes can try them all. 2**256 tokens cannot be tried with a fast hash either,
and a slow one would cost more than the request.

**Why timing does not reveal a token.** A token is found by looking up its hash in a dictionary. The
time of that lookup may depend on how many bits of the hash agree with a stored one. A caller cannot
use this: to choose the bits of a hash, it has to invert SHA-256. The time could reveal a part of a
hash at most, and no token can be computed from it.
"""

from dandelion.tokens.records import Right, TokenRecord
from dandelion.tokens.table import ANONYMOUS, Grant, TokenTable
from dandelion.tokens.watch import TokenFile

__all__ = ["ANONYMOUS", "Grant", "Right", "TokenFile", "TokenRecord", "TokenTable"]
