"""Examples, how they are split over clients, and how a batch of them becomes a model's input.

Importing this package needs only torch. The functions that read or split data import the
libraries of the ``data`` extra when they are called.
"""

from .augment import Augment, Statistics, normalise, random_crop, random_flip
from .clients import ClientData, Clients
from .examples import Examples, Images
from .own import by_owner, from_table, split
from .partitioning import KINDS, Partition, Summary, partition
from .source import SPLITS, Source
from .sources import NAMES, SOURCES, STATISTICS, load
from .standard import Moments, Standard, moments, standardise

__all__ = [
    "KINDS",
    "NAMES",
    "SOURCES",
    "SPLITS",
    "STATISTICS",
    "Augment",
    "ClientData",
    "Clients",
    "Examples",
    "Images",
    "Moments",
    "Partition",
    "Source",
    "Standard",
    "Statistics",
    "Summary",
    "by_owner",
    "from_table",
    "load",
    "moments",
    "normalise",
    "partition",
    "random_crop",
    "random_flip",
    "split",
    "standardise",
]
