"""A client of this store, measured with the same operations as the peer's."""

from __future__ import annotations

import argparse

from worker import private_memory, serve

from mooncake_store import Client
from mooncake_store.cli.bench.sdk_store import SdkStore


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--buffer", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--tcp", action="store_true", help="never shared memory or Unix sockets")
    arguments = parser.parse_args()
    client = Client(
        arguments.master,
        use_local_paths=not arguments.tcp,
        replicas=arguments.replicas,
        location_count_max=1 << 17,  # 65,536 objects rotate: the default just does not hold them
    )
    serve(SdkStore(client, private_memory(arguments.buffer)))


if __name__ == "__main__":
    main()
