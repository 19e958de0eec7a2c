"""The health check of a container: exit with 0 if Flower's server at $HEALTH says that it is up.

A SuperLink is asked over TLS, and must show a certificate of the authority that is mounted.
"""

import os
import ssl
import urllib.request

url = os.environ["HEALTH"]
context = None
if url.startswith("https"):
    context = ssl.create_default_context(cafile=os.environ.get("HEALTH_CA", "/etc/flower/ca.crt"))
with urllib.request.urlopen(url, timeout=8, context=context) as answer:
    raise SystemExit(0 if answer.status == 200 else 1)
