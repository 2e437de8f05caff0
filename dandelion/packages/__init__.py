"""Python packages of functions, in environments that are prepared when a function is registered.

::

    registration ──requirements──> Environments ──PrepareJob──> prepare_process
                 <────wheels──────      │       <─PrepareAnswer─  (wheel_sources, resolving,
                                        │                          unpacking)
                                        ▼
                                FOLDER/KEY/site     read-only; named by its content

A function names requirements. A confined process resolves them to wheels, and unpacks these into a
new folder. The node checks what is in that folder, makes it read-only, and renames it to its key:
the digest of the wheels, of the Python version and platform, and of the versions of the packages
that sandboxes have from the node. So a folder with such a name is complete, equal sets share it,
and no other content can be put below that name. The wheels are noted in the registration, so that
the same ones are taken when the folder has to be made again.

Only wheels are used. A source distribution would have to be built, which runs its code.
"""

from dandelion.packages.environments import Environments as Environments
from dandelion.packages.records import PackageSource as PackageSource
