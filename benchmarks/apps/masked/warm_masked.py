"""The ClientApp on warm nodes; it is beside the package, which imports torch."""

from fedlada.flower import warm_app

app = warm_app("masked.client:app")
