"""Chooses wheels that fulfil requirements. Used in the process that prepares packages.

The library resolvelib searches; this module gives it the wheels and their requirements. A
requirement with extras, such as ``httpx[http2]``, is a project of its own that needs ``httpx`` of
the same version. The packages that sandboxes have from the node are candidates without a wheel, and
are preferred.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from typing import Any, NamedTuple

import resolvelib
from packaging.markers import UndefinedEnvironmentName, default_environment
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from dandelion.errors import Problem, nearest
from dandelion.packages.requirements import FIXED
from dandelion.packages.wheel_sources import WheelFile, WheelSource

_ROUNDS = 20_000
_SHOWN = 6
_TAGS = {tag: at for at, tag in enumerate(sys_tags())}
_PYTHON = Version(default_environment()["python_full_version"].rstrip("+"))


class CannotResolve(Exception):
    """The requirements cannot be fulfilled; the problems say why."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(*map(str, problems))
        self.problems = tuple(problems)


class _Identifier(NamedTuple):
    project: str
    extras: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """A version of a project that could be chosen; without a wheel the sandbox has it."""

    identifier: _Identifier
    version: Version
    wheel: WheelFile | None = None

    def __str__(self) -> str:
        return f"{self.identifier.project} {self.version}"


def resolve(
    requirements: Iterable[str],
    sources: Sequence[WheelSource],
    provided: Mapping[str, str],
    pins: Mapping[str, str],
) -> list[tuple[WheelFile, WheelSource]]:
    """Choose a wheel for each project that the requirements need.

    Args:
        requirements: of the function.
        sources: the first that has a project at all is the one it is taken from.
        provided: versions of what sandboxes have.
        pins: if there are any, only wheels with these names and digests are taken.

    Raises:
        CannotResolve: nothing fulfils them.
    """
    provider = _Provider(sources, provided, pins)
    wanted = [one for one in map(Requirement, requirements) if _applies(one, "")]
    if problems := [*provider.unknown(wanted)]:
        raise CannotResolve(problems)
    resolver: Any = resolvelib.Resolver(provider, resolvelib.BaseReporter())
    try:
        mapping = resolver.resolve(wanted, max_rounds=_ROUNDS).mapping
    except resolvelib.ResolutionImpossible as error:
        raise CannotResolve([provider.conflict(list(error.causes))]) from None
    except resolvelib.ResolutionTooDeep:
        message = "no set of versions was found in time; name versions more exactly"
        raise CannotResolve([Problem("conflicting-packages", message)]) from None
    chosen = {c.wheel.name: c.wheel for c in mapping.values() if c.wheel is not None}
    return [(chosen[name], provider.source_of(chosen[name].project)) for name in sorted(chosen)]


def _applies(requirement: Requirement, extra: str) -> bool:
    try:
        return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    except UndefinedEnvironmentName:
        return False


class _Provider(resolvelib.AbstractProvider[Any, Any, Any]):
    """Answers the questions of resolvelib."""

    def __init__(
        self, sources: Sequence[WheelSource], provided: Mapping[str, str], pins: Mapping[str, str]
    ) -> None:
        self._sources = sources
        self._provided = {name: Version(version) for name, version in provided.items()}
        self._pins = pins
        self._listed: dict[str, list[_Candidate]] = {}
        self._needs: dict[str, list[Requirement]] = {}

    # --- what there is ------------------------------------------------------------------------

    def source_of(self, project: str) -> WheelSource:
        """Return the first source that has files of a project, or the last one."""
        for source in self._sources[:-1]:
            if source.find(project) or source.others(project):
                return source
        return self._sources[-1]

    def candidates(self, project: str) -> list[_Candidate]:
        """List the versions of a project, best first."""
        if project in self._listed:
            return self._listed[project]
        found: dict[Version, WheelFile] = {}
        for wheel in self._found(project):
            other = found.get(wheel.version)
            if other is None or _rank(wheel) < _rank(other):
                found[wheel.version] = wheel
        identifier = _Identifier(project)
        listed = [_Candidate(identifier, v, found[v]) for v in sorted(found, reverse=True)]
        version = self._provided.get(project)
        if version is not None and not any(c.wheel for c in listed if self._pins):
            own = [_Candidate(identifier, version)]
            listed = own if project in FIXED else own + [c for c in listed if c.version != version]
        self._listed[project] = listed
        return listed

    def _found(self, project: str) -> Iterator[WheelFile]:
        if project in FIXED or not self._sources:
            return
        for wheel in self.source_of(project).find(project):
            if self._pins and wheel.name not in self._pins:
                continue
            if wheel.digest and self._pins and self._pins[wheel.name] != wheel.digest:
                continue
            if _fits(wheel):
                yield wheel

    # --- the interface of resolvelib ----------------------------------------------------------

    def identify(self, requirement_or_candidate: Any) -> _Identifier:
        if isinstance(requirement_or_candidate, _Candidate):
            return requirement_or_candidate.identifier
        extras = tuple(sorted(map(canonicalize_name, requirement_or_candidate.extras)))
        return _Identifier(canonicalize_name(requirement_or_candidate.name), extras)

    def get_preference(
        self,
        identifier: Any,
        resolutions: Any,
        candidates: Any,
        information: Any,
        backtrack_causes: Any,
    ) -> tuple[bool, bool, str]:
        causes = any(identifier == self.identify(c.requirement) for c in backtrack_causes)
        pinned = any(
            spec.operator == "==" for one in information[identifier]
            for spec in one.requirement.specifier
        )  # fmt: skip
        return not causes, not pinned, identifier.project

    def find_matches(
        self, identifier: Any, requirements: Any, incompatibilities: Any
    ) -> list[_Candidate]:
        wanted = list(requirements[identifier])
        excluded = {candidate.version for candidate in incompatibilities[identifier]}
        found = [c for c in self.candidates(identifier.project) if c.version not in excluded]
        fitting = [c for c in found if all(_contains(r.specifier, c) for r in wanted)]
        final = [c for c in fitting if not c.version.is_prerelease]
        names_others = any(r.specifier.prereleases for r in wanted)
        chosen = fitting if names_others else final or fitting
        yanked_is_named = any(_is_exact(r.specifier) for r in wanted)
        return [
            _Candidate(identifier, c.version, c.wheel)
            for c in chosen
            if c.wheel is None or not c.wheel.yanked or yanked_is_named
        ]

    def is_satisfied_by(self, requirement: Any, candidate: Any) -> bool:
        return _contains(requirement.specifier, candidate)

    def get_dependencies(self, candidate: Any) -> list[Requirement]:
        project, extras = candidate.identifier
        if candidate.wheel is None:
            needs: list[Requirement] = []
        else:
            needs = self._requirements_of(candidate.wheel)
        if not extras:
            return [one for one in needs if _applies(one, "")]
        base = Requirement(f"{project}=={candidate.version}")
        return [base, *(r for r in needs if any(_applies(r, e) for e in extras))]

    def _requirements_of(self, wheel: WheelFile) -> list[Requirement]:
        if wheel.name not in self._needs:
            self._needs[wheel.name] = self._read_requirements(wheel)
        return self._needs[wheel.name]

    def _read_requirements(self, wheel: WheelFile) -> list[Requirement]:
        try:
            data = self.source_of(wheel.project).metadata(wheel)
            headers = BytesHeaderParser().parsebytes(data)
            name, version = str(headers["Name"] or ""), str(headers["Version"] or "")
            if canonicalize_name(name) != wheel.project or Version(version) != wheel.version:
                raise ValueError(f"its metadata is that of {name} {version}")
            texts = [str(text) for text in headers.get_all("Requires-Dist", [])]
            found = [Requirement(text) for text in texts]
        except (
            *(zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError),
            *(RuntimeError, OverflowError, struct.error),  # zipfile reports damage with these, too
        ) as error:
            raise CannotResolve([bad_wheel(wheel.name, error)]) from None
        for one in found:
            if one.url is not None:
                message = f"{wheel.name} needs '{one.name}' from an address of its own"
                raise CannotResolve([Problem("not-by-place", message)])
        return found

    # --- explanations -------------------------------------------------------------------------

    def unknown(self, wanted: Iterable[Requirement]) -> Iterator[Problem]:
        """Describe requirements for which there is nothing at all."""
        for requirement in wanted:
            problem = self._missing(requirement)
            if problem is not None:
                yield problem

    def _missing(self, requirement: Requirement) -> Problem | None:
        """Say why no version of a project fits a requirement; None if one does."""
        project = canonicalize_name(requirement.name)
        found = self.candidates(project)
        if any(_contains(requirement.specifier, c) for c in found):
            return None
        shown = ", ".join(source.shown for source in self._sources)
        if found:
            versions = _some([str(c.version) for c in found])
            if project in FIXED:
                message = f"'{requirement}': sandboxes have {project} {versions} of the node"
                return Problem("no-version", message)
            return Problem("no-version", f"no version fits '{requirement}'", expected=versions)
        if self._pins and self.source_of(project).find(project):
            message = f"{shown} has no wheel of '{project}' with the recorded digest any more"
            return Problem("wheel-changed", message)
        wheels = [wheel.name for wheel in self.source_of(project).find(project)]
        if wheels:
            message = f"no wheel of '{project}' fits Python {_PYTHON} on this platform"
            return Problem("no-wheel", message, found=_some(wheels))
        if refused := self.source_of(project).refused(project):
            message = f"the wheels of '{project}' have no SHA-256 in the index, or are elsewhere"
            return Problem("no-wheel", message, found=_some(refused))
        if others := self.source_of(project).others(project):
            message = f"'{project}' has no wheels, only sources, which would have to be built"
            return Problem("no-wheel", message, found=_some(others))
        known = [*self._provided, *(n for source in self._sources for n in source.projects())]
        near = nearest(project, known) or ""
        return Problem("unknown-package", f"{shown} has no package '{project}'", nearest=near)

    def conflict(self, causes: Sequence[Any]) -> Problem:
        """Describe the requirements that no version fulfils together."""
        for cause in causes:
            problem = self._missing(cause.requirement)
            if problem is not None and cause.parent is not None:
                message = f"{cause.parent} needs '{cause.requirement}': {problem.message}"
                return Problem(problem.code, message, expected=problem.expected,
                               found=problem.found, nearest=problem.nearest)  # fmt: skip
        lines = [f"{cause.parent or 'the function'} needs {cause.requirement}" for cause in causes]
        message = "these requirements cannot be fulfilled together: "
        return Problem("conflicting-packages", message + _some(list(dict.fromkeys(lines)), "; "))


def bad_wheel(name: str, error: Exception) -> Problem:
    """Describe a file that is not a wheel as the specification has it."""
    reason = error.args[0] if isinstance(error, KeyError) and error.args else error
    return Problem("bad-wheel", f"{name} is damaged: {str(reason)[:200]}")


def _rank(wheel: WheelFile) -> int:
    return min((_TAGS[tag] for tag in wheel.tags if tag in _TAGS), default=len(_TAGS))


def _fits(wheel: WheelFile) -> bool:
    if not any(tag in _TAGS for tag in wheel.tags):
        return False
    try:
        return SpecifierSet(wheel.requires_python).contains(_PYTHON, prereleases=True)
    except InvalidSpecifier:
        return False


def _contains(specifier: SpecifierSet, candidate: _Candidate) -> bool:
    return specifier.contains(candidate.version, prereleases=True)


def _is_exact(specifier: SpecifierSet) -> bool:
    return any(one.operator in ("==", "===") for one in specifier)


def _some(texts: Sequence[str], separator: str = ", ") -> str:
    shown = separator.join(texts[:_SHOWN])
    more = len(texts) - _SHOWN
    return f"{shown}{separator}{more} more" if more > 0 else shown
