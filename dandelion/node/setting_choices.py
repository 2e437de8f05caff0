"""What a node chooses by its settings. Mistakes in them are found here, before anything is open."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from dandelion.controllers.cores import CoreDivision, core_division
from dandelion.dataflow.sharding import Partitioning
from dandelion.errors import InvalidInput
from dandelion.namespaces import check_tenant
from dandelion.node.callback_sender import CallbackRules
from dandelion.node.loaded_backends import check_names
from dandelion.node.packages import package_source
from dandelion.policies import policy_of
from dandelion.scheduler.policy import Policy
from dandelion.settings import Settings


@dataclass(frozen=True, slots=True)
class SettingChoices:
    """What the texts of settings mean.

    Attributes:
        partitioning: of ``any`` shardings.
        policy: a new one, for one scheduler.
        division: how compute and I/O engines divide cores; None if they do not.
        callbacks: which URLs may be called.
    """

    partitioning: Partitioning
    policy: Policy
    division: CoreDivision | None
    callbacks: CallbackRules

    @staticmethod
    def of(settings: Settings, embedded: Iterable[str]) -> SettingChoices:
        """Read the settings of a node.

        Args:
            settings: of the node.
            embedded: names of drivers that the program provides.

        Raises:
            InvalidInput: a setting, or a backend or option that it names, is bad.
        """
        partitioning = _partitioning(settings.partitioning)
        check_names(settings, embedded)
        policy = policy_of(settings.policy)
        division = core_division(settings.cores, len(os.sched_getaffinity(0)))
        if division is not None and not policy.elastic:
            raise InvalidInput(
                "cores", f"the policy '{settings.policy}' fixes engines", "use cores = 'shared'"
            )
        callbacks = CallbackRules.of(settings)
        package_source(settings)
        for name in settings.tenants:
            check_tenant(name)
        return SettingChoices(partitioning, policy, division, callbacks)


def _partitioning(text: str) -> Partitioning:
    mode, colon, number = text.partition(":")
    cores = os.cpu_count() or 1
    if not colon and mode in ("max", "auto"):
        return Partitioning(mode, cores=cores)
    if mode in ("fixed", "auto") and number.isdigit() and int(number) > 0:
        given = {"number" if mode == "fixed" else "cores": int(number)}
        return Partitioning(mode, **{"cores": cores, **given})
    raise InvalidInput("partitioning", f"'{text}'", "use max, auto, auto:CORES or fixed:N")
