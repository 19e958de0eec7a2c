"""Codecs: how a vector becomes bytes, one file each."""

from .codec import Codec, MalformedReply
from .registry import CODECS, Codecs, Way

__all__ = ["CODECS", "Codec", "Codecs", "MalformedReply", "Way"]
