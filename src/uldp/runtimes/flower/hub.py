"""The former name of :mod:`uldp.runtimes.flower.transport`, for ``uldp.bench.carrier`` until it follows."""

from __future__ import annotations

from uldp.runtimes.flower.transport import Transport


class Hub(Transport):
    know = Transport.set_nodes
