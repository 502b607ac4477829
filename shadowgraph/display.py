"""How objects that users hold show themselves in a notebook."""

from __future__ import annotations

__all__ = ["Shown"]


class Shown:
    """Gives a class the HTML of `shadowgraph.reports.html`, made when a notebook asks for it and not before.

    What a terminal prints stays the class's own `repr`.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """A fragment without scripts and external parts, or None when there is nothing better than the `repr`."""
        from shadowgraph.reports.html.reprs import html_of

        return html_of(self)
