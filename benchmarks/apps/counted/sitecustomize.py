"""A hook for SuperNodes: append the bytes of every exchange with the SuperLink to a file.

A line of COUNTED has the path of a request, the bytes of its head and of its body, and the same of
the response.  TLS, which is below, adds some 20 bytes to every 16 kB.
"""

import os
import sys

if "supernode" in " ".join(sys.orig_argv) and "COUNTED" in os.environ:
    import httpx

    send = httpx.Client.send

    def counted(self, request, **options):
        response = send(self, request, **options)
        sizes = [
            size
            for each in (request, response)
            for size in (
                sum(len(name) + len(value) + 4 for name, value in each.headers.raw),
                int(each.headers.get("content-length", 0)),
            )
        ]
        with open(os.environ["COUNTED"], "a") as file:
            file.write(" ".join(map(str, [request.url.path, *sizes])) + "\n")
        return response

    httpx.Client.send = counted
