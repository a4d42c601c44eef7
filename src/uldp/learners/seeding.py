"""Seeding torch's own generator, for modules whose random choices we cannot see into."""

from __future__ import annotations

import torch


def seed_cpu(value: int) -> None:
    """Seed the CPU's generator alone.

    ``torch.manual_seed`` also keeps a call, with a traceback, for every kind of device that was not used yet: some
    milliseconds and some memory that nobody gives back, for every user and step.
    """
    torch.default_generator.manual_seed(value)
