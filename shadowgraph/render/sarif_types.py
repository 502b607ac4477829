"""The parts of SARIF 2.1.0 that reports of findings use, as records: names and nesting are the standard's.

Filled by `shadowgraph.render.sarif`. What is left at its default is left out of the document.
"""

from __future__ import annotations

import msgspec


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Field names in camel case; fields at their defaults are left out."""


class Message(_Part, frozen=True):
    text: str


class Help(_Part, frozen=True):
    text: str
    markdown: str


class ArtifactLocation(_Part, frozen=True):
    uri: str
    uri_base_id: str | None = None


class Region(_Part, frozen=True):
    start_line: int


class PhysicalLocation(_Part, frozen=True):
    artifact_location: ArtifactLocation
    region: Region | None = None


class LogicalLocation(_Part, frozen=True):
    fully_qualified_name: str
    kind: str | None = None


class Location(_Part, frozen=True):
    id: int | None = None
    physical_location: PhysicalLocation | None = None
    logical_locations: tuple[LogicalLocation, ...] = ()
    message: Message | None = None


class StackFrame(_Part, frozen=True):
    location: Location


class Stack(_Part, frozen=True):
    message: Message
    frames: tuple[StackFrame, ...]


class Suppression(_Part, frozen=True):
    kind: str
    status: str
    justification: str | None = None
    location: Location | None = None


class Result(_Part, frozen=True):
    rule_id: str
    rule_index: int
    level: str
    message: Message
    locations: tuple[Location, ...]
    partial_fingerprints: dict[str, str]
    occurrence_count: int
    related_locations: tuple[Location, ...] = ()
    stacks: tuple[Stack, ...] = ()
    suppressions: tuple[Suppression, ...] | None = None
    properties: dict[str, str | int] = {}


class Configuration(_Part, frozen=True):
    level: str


class Rule(_Part, frozen=True):
    id: str
    name: str
    short_description: Message
    full_description: Message
    help: Help
    default_configuration: Configuration


class Driver(_Part, frozen=True):
    name: str
    semantic_version: str
    rules: tuple[Rule, ...]


class Tool(_Part, frozen=True):
    driver: Driver


class Notification(_Part, frozen=True):
    level: str
    message: Message


class Invocation(_Part, frozen=True):
    execution_successful: bool
    tool_execution_notifications: tuple[Notification, ...] = ()


class Run(_Part, frozen=True):
    tool: Tool
    results: tuple[Result, ...]
    original_uri_base_ids: dict[str, ArtifactLocation]
    invocations: tuple[Invocation, ...]
    column_kind: str


class Log(_Part, frozen=True):
    schema: str = msgspec.field(name="$schema")
    version: str
    runs: tuple[Run, ...]
