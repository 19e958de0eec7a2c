"""The codec: one file."""

import torch

from fedlada.algorithms import Vector
from fedlada.protocol.codecs.codec import Codec, split


class BF16(Codec):
    """The upper half of each float32."""

    def size(self, layout):
        return 2 * sum(entry.numel for entry in layout)

    def encode(self, vector, *, seed):
        return torch.cat([t.reshape(-1).bfloat16().view(torch.uint8) for t in vector])

    def decode(self, payload, layout):
        return Vector(t.float() for t in split(payload, layout, torch.bfloat16))
