"""Which node keys a SuperLink knows. A program, for it needs Flower's environment; ``flwr`` does not print keys."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Print every registered key and its node id."""
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection
    from flwr.proto.control_pb2 import ListNodesRequest

    client = init_http_client_from_connection(read_superlink_connection(sys.argv[1]))
    try:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    finally:
        client.close()
    known = {node.public_key.decode(): str(node.node_id) for node in nodes if node.status != "unregistered"}
    print(json.dumps({"success": True, "nodes": known}))


if __name__ == "__main__":
    main()
