"""Look around in a session: list folders, preview a table and a picture, read a file as an MCP resource.

    python examples/inspect_workspace.py [SERVER_URL]
"""

import anyio
from _server import connect

CODE = """
import matplotlib.pyplot as plt
import pandas as pd

table = pd.DataFrame({"day": range(1, 31), "visits": [day * 7 % 31 for day in range(30)]})
table.to_csv("output/visits.csv", index=False)
table.plot(x="day")
plt.savefig("output/visits.png")
plt.close()
"""


async def main() -> None:
    async with connect() as client:
        run = (await client.call_tool("run_code", {"code": CODE})).structured_content
        session = {"session_id": run["session_id"]}

        listed = await client.call_tool("list_dir", {"dir_path": "output", **session})
        for entry in listed.structured_content["entries"]:
            print(f"{entry['type']} {entry['path']}: {entry['size']} bytes")

        table = await client.call_tool("preview_file", {"relative_path": "output/visits.csv", "limit": 200, **session})
        look = table.structured_content
        print(f"{look['rows']} rows of {', '.join(column['name'] for column in look['columns'])}")
        print(look["text"])

        picture = await client.call_tool("preview_file", {"relative_path": "output/visits.png", **session})
        look = picture.structured_content
        print(f"{look['width']}x{look['height']} pixels, sent as {picture.content[-1].type}")

        uri = next(file["uri"] for file in run["artifacts"] if file["name"] == "visits.csv")
        contents = (await client.read_resource(uri)).contents[0]
        print(f"resource: {contents.mime_type}, {len(contents.text.splitlines())} lines")


anyio.run(main)
