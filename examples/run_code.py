"""Run Python: text, the last value, a picture, packages by name, and what an error looks like.

    python examples/run_code.py [SERVER_URL]
"""

import anyio
from _server import connect

CODE = """
import matplotlib.pyplot as plt
import pandas as pd

table = pd.DataFrame({"n": range(1, 6)}).assign(square=lambda t: t.n**2)
print(table.to_string(index=False))
table.plot(x="n", y="square")
plt.show()
table.square.to_list()
"""


async def main() -> None:
    async with connect() as client:
        result = await client.call_tool("run_code", {"code": CODE})
        run = result.structured_content
        print(f"{run['status']} inside {run['isolation']}: {run['result']}")
        print(run["stdout"])
        for block in result.content:
            print(f"content: {block.type}")

        code = "import humanize\nhumanize.intword(12_300_000)"
        result = await client.call_tool("run_code", {"code": code, "requirements": ["humanize"]})
        print("with a package:", result.structured_content["result"])

        result = await client.call_tool("run_code", {"code": "values = []\nvalues[0]"})
        error = result.structured_content["error"]
        print(f"{error['name']} in line {error['line']}: {error['value']}")


anyio.run(main)
