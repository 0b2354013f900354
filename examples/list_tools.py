"""What a server offers: tools and their arguments, prompts, and the files that can be read as resources.

    python examples/list_tools.py [SERVER_URL]
"""

import anyio
from _server import connect


async def main() -> None:
    async with connect() as client:
        for tool in (await client.list_tools()).tools:
            print(f"{tool.name}: {tool.title}")
            for name, schema in tool.input_schema["properties"].items():
                required = " (required)" if name in tool.input_schema["required"] else ""
                print(f"    {name}{required}: {schema['description']}")
        for prompt in (await client.list_prompts()).prompts:
            print(f"prompt {prompt.name}: {', '.join(argument.name for argument in prompt.arguments)}")
        for template in (await client.list_resource_templates()).resource_templates:
            print(f"resource {template.uri_template}: {template.title}")


anyio.run(main)
