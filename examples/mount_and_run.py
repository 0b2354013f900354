"""Bring data in, then work on it. The answer to mount_file describes the file, so that code need not look first.

    python examples/mount_and_run.py [SERVER_URL [FILE_URL]]

FILE_URL is any http, https or data: URL of a CSV file with the columns of examples/sales.csv.
"""

import base64
import sys
from pathlib import Path

import anyio
from _server import connect

SALES = Path(__file__).with_name("sales.csv")
CODE = """
import pandas as pd

sales = pd.read_csv("mounts/sales.csv")
(sales.units * sales.unit_price).groupby(sales.region).sum().round(2).to_dict()
"""


def data_url(path: Path) -> str:
    """A small file as a URL that holds it."""
    return "data:text/csv;base64," + base64.b64encode(path.read_bytes()).decode()


async def main() -> None:
    url = sys.argv[2] if len(sys.argv) > 2 else data_url(SALES)
    async with connect() as client:
        result = await client.call_tool("mount_file", {"url": url, "mount_path": "sales.csv"})
        mounted = result.structured_content
        print(f"{mounted['mounted_as']}: {mounted['rows']} rows, {mounted['bytes']} bytes")
        print(", ".join(f"{column['name']} ({column['type']})" for column in mounted["columns"]))

        # The file is in the session that the answer names.
        result = await client.call_tool("run_code", {"code": CODE, "session_id": mounted["session_id"]})
        print(result.structured_content["result"])

        # The same in one call, in a session of its own.
        files = [{"url": url, "mountPath": "sales.csv"}]
        result = await client.call_tool("run_code", {"code": CODE, "files": files})
        print("in one call:", result.structured_content["status"])


anyio.run(main)
