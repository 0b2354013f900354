"""The MCP face: tools, rendering, transports. The only room that imports `mcp`."""
