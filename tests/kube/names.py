"""A small DNS server for the test cluster, in the place of CoreDNS and kube-proxy.

Started as a program: `names.py ADDRESS KUBECONFIG`. Every name of a service gets the addresses of its ready
pods, headless or not; NAME.SERVICE the address of the one pod. The apiserver is asked for each query, so no
answer is old.
"""

import json
import socket
import ssl
import struct
import sys
import urllib.request
from pathlib import Path

TTL_S = 1
NO_SUCH_NAME = 3


def addresses(name: str, server: str, token: str) -> list[str] | None:
    """The IPv4 addresses of [POD.]SERVICE.NAMESPACE.svc[.cluster.local]; None when there is no such name."""
    parts = name.removesuffix(".cluster.local").split(".")
    if len(parts) < 3 or parts[-1] != "svc":
        return None
    *pod, service, namespace = parts[:-1]
    request = urllib.request.Request(  # noqa: S310  the test's own server
        f"{server}/api/v1/namespaces/{namespace}/endpoints/{service}",
        headers={"Authorization": f"Bearer {token}"},
    )
    try:
        unchecked = ssl._create_unverified_context()  # noqa: S323  a certificate that it has made itself
        with urllib.request.urlopen(request, timeout=2, context=unchecked) as answer:  # noqa: S310
            subsets = json.load(answer).get("subsets") or []
    except OSError:
        return None
    found = [each for subset in subsets for each in subset.get("addresses", [])]
    return [each["ip"] for each in found if not pod or each.get("hostname") == pod[0]]


def answer(query: bytes, server: str, token: str) -> bytes:
    """The reply to a query with one question."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    question = query[12 : at + 5]
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    found = addresses(".".join(labels).lower(), server, token)
    records = [
        b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, TTL_S, 4) + socket.inet_aton(ip) for ip in found or ()
    ]
    if kind != 1:  # no IPv6 here
        records = []
    flags = 0x8580 | (NO_SUCH_NAME if not found else 0)
    return query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0) + question + b"".join(records)


def main(address: str, kubeconfig: str) -> None:
    """Answers for ever."""
    config = json.loads(Path(kubeconfig).read_text())
    server, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind((address, 53))
        while True:
            query, asker = door.recvfrom(512)
            door.sendto(answer(query, server, token), asker)


if __name__ == "__main__":
    main(*sys.argv[1:])
