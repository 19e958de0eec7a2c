"""Images, how they are split over clients, and how a batch of them becomes network input.

Importing this package needs torch alone. The functions that read or split data import the
libraries of the ``data`` extra when they are called.
"""

from fedlada.data.augment import (
    STATISTICS,
    Augment,
    Statistics,
    normalise,
    random_crop,
    random_flip,
)
from fedlada.data.clients import ClientData, Clients
from fedlada.data.images import Images
from fedlada.data.partitioning import KINDS, Partition, Summary, partition
from fedlada.data.sources import NAMES, SPLITS, load

__all__ = [
    "KINDS",
    "NAMES",
    "SPLITS",
    "STATISTICS",
    "Augment",
    "ClientData",
    "Clients",
    "Images",
    "Partition",
    "Statistics",
    "Summary",
    "load",
    "normalise",
    "partition",
    "random_crop",
    "random_flip",
]
