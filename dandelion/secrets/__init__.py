"""Secrets: values that the operator gives to functions by name.

`file` reads them, `store` keeps them for the node, `redaction` takes them out of errors and logs. A
function declares which of its input sets are filled with secrets (`FunctionSpec.secrets`). Only
their names are registered. The value is added when the function is loaded, as its static sets are,
so it is in no input of an invocation, and in no trace, recording or cached result.
"""

from dandelion.secrets.redaction import redact, redacted_texts
from dandelion.secrets.store import SecretStore

__all__ = ["SecretStore", "redact", "redacted_texts"]
