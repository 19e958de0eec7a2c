"""An app with a codec of its own; its registry line is here, so that both sides have it."""

from coded.bf16 import BF16
from fedlada.protocol.codecs import CODECS

CODECS["halves"] = BF16()
