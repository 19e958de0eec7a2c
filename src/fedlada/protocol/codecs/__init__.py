"""Codecs turn a vector into bytes and back; each has its own file."""

from .codec import Codec, MalformedReply
from .registry import CODECS, PRESETS, Codecs, Way

__all__ = ["CODECS", "PRESETS", "Codec", "Codecs", "MalformedReply", "Way"]
