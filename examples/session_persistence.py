"""What stays from call to call: files of the session. What does not: variables, imports, packages, processes.

    python examples/session_persistence.py [SERVER_URL]
"""

import anyio
from _server import connect

WRITE = """
answer = 42
open("output/notes.txt", "w").write("made by the first call")
"""
READ = """
print(open("output/notes.txt").read())
print("answer" in globals())
"""


async def main() -> None:
    async with connect() as client:
        first = await client.call_tool("run_code", {"code": WRITE})
        session_id = first.structured_content["session_id"]

        second = await client.call_tool("run_code", {"code": READ, "session_id": session_id})
        text, known = second.structured_content["stdout"].splitlines()
        print("the file stayed:", text)
        print("the variable stayed:", known)

        other = await client.call_tool("run_code", {"code": READ})
        print("another session has the file:", not other.is_error)

        wrong = await client.call_tool("run_code", {"code": READ, "session_id": "s_of_somebody_else"})
        print("a session that is not ours:", wrong.content[0].text)


anyio.run(main)
