"""Upload a result to a presigned URL, as object stores such as S3 give them.

    python examples/persist_artifact.py [SERVER_URL PRESIGNED_URL]

Without arguments, a small web server on this machine stands for the object store.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import anyio
from _server import connect

CODE = 'open("output/table.csv", "w").write("a,b\\n1,2\\n")'


class Store(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(f"the store got {len(body)} bytes of {self.headers['Content-Type']}")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@contextmanager
def store() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def main() -> None:
    with store() as place:
        url = sys.argv[2] if len(sys.argv) > 2 else f"http://{place}/bucket/table.csv"
        # Private addresses are refused unless the operator names them.
        async with connect("--allow-host", place) as client:
            run = await client.call_tool("run_code", {"code": CODE})
            result = await client.call_tool("persist_artifact", {
                "relative_path": "output/table.csv", "presigned_url": url,
                "headers": {"Content-Type": "text/csv"},
                "session_id": run.structured_content["session_id"],
            })  # fmt: skip
            print(result.content[0].text)


anyio.run(main)
