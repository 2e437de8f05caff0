"""From documents to a checked batch: all checks of a registration.

A registration is checked as a whole, against itself and the catalogue, before anything is stored.
So whatever is registered can run: names resolve, sets agree, code loads, nothing is recursive, and
registered compositions still work.

Checking code may take long, since it may be compiled; code is then also compiled ahead for the
available devices. So a registration has three steps: `Registrar.draft` checks everything but the
code, `RegistrationDraft.look_into_code` checks the code without a lock, and `Registrar.batch`
returns the batch, which is the draft's if the catalogue has not changed since.

================  ============================================================================
file              what it has
================  ============================================================================
`registrar`       `Registrar`: a document, checked against a catalogue
`declarations`    mistakes in the declaration of a function: names, sets, limits
`functions`       functions of a document become records, with their code
`compositions`    compositions of a document become records, and stay usable
`draft`           checking code, and compiling it ahead
================  ============================================================================
"""

from dandelion.registration.draft import Target
from dandelion.registration.functions import blobs_of
from dandelion.registration.registrar import Registrar

__all__ = ["Registrar", "Target", "blobs_of"]
