"""Documents: the form in which functions, libraries and compositions are registered.

The same records are the Python API, and the JSON and MessagePack of ``POST /v1/register``. In JSON,
``{"data": "..."}`` is base64 and ``{"text": "..."}`` or a bare string is UTF-8 text; in MessagePack
``data`` is binary.
"""

from dandelion.contents import (
    Content,
    ContentLike,
    ItemContent,
    ItemContentLike,
    StaticValue,
    content,
    item_content,
)
from dandelion.documents.collecting import (
    collect,
)
from dandelion.documents.functions import (
    gpu_function,
    python_function,
    static_contents,
)
from dandelion.documents.records import (
    CodeDocument,
    FunctionDocument,
    FunctionLike,
    GivenLimits,
    HasDocument,
    HasText,
    Named,
    PlannedChange,
    Registered,
    Registrable,
    RegistrationDocument,
    SetLike,
    limits_of,
    name_of,
    set_spec,
)

__all__ = [
    "CodeDocument",
    "Content",
    "ContentLike",
    "FunctionDocument",
    "FunctionLike",
    "GivenLimits",
    "HasDocument",
    "HasText",
    "ItemContent",
    "ItemContentLike",
    "Named",
    "PlannedChange",
    "Registered",
    "Registrable",
    "RegistrationDocument",
    "SetLike",
    "StaticValue",
    "collect",
    "content",
    "gpu_function",
    "item_content",
    "limits_of",
    "name_of",
    "python_function",
    "set_spec",
    "static_contents",
]
