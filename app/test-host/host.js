// A small host of MCP Apps around the reference implementation of the protocol: what tests call is in `testHost`.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { AppBridge, getToolUiResourceUri, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const INFO = { name: "test-host", version: "1" };
const log = { links: [], downloads: [], modes: [], errors: [], asked: [] };
let client, tool, page;

async function connect(url) {
  client = new Client(INFO, { capabilities: { extensions: { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } } } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  tool = (await client.listTools()).tools.find(({ name }) => name === "run_code");
  page = (await client.readResource({ uri: getToolUiResourceUri(tool) })).contents[0];
  return { mimeType: page.mimeType, meta: page._meta, toolMeta: tool._meta, bytes: page.text.length };
}

function call(input) {
  return client.callTool({ name: "run_code", arguments: input }, { timeout: 120_000 });
}

/** Show the app in a new frame, and give it what a host gives: input, then result (or the reason of a cancellation). */
async function show({ input, result, cancelled, context = {}, capabilities = {} }) {
  document.querySelector("iframe")?.remove();
  for (const kept of Object.values(log)) kept.length = 0;
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-same-origin allow-forms");
  frame.style = "border:0;width:100%;height:600px;display:block";
  const origin = location.origin.replace("localhost", "127.0.0.1");
  frame.src = `${origin}/sandbox.html?csp=${encodeURIComponent(JSON.stringify(page._meta.ui.csp))}`;
  const bridge = new AppBridge(
    client,
    INFO,
    { openLinks: {}, serverTools: {}, serverResources: {}, downloadFile: {}, ...capabilities },
    { hostContext: { theme: "light", availableDisplayModes: ["inline", "fullscreen"], displayMode: "inline", ...context } },
  );
  bridge.onopenlink = async ({ url }) => (log.links.push(url), {});
  bridge.ondownloadfile = async ({ contents }) => (log.downloads.push(contents), {});
  bridge.onrequestdisplaymode = async ({ mode }) => (log.modes.push(mode), { mode });
  // What is asked of the server for the app, on top of the forwarding of the bridge itself.
  for (const name of ["callTool", "readResource"]) bridge[`on${name.toLowerCase()}`] = (params) => (log.asked.push(params.name ?? params.uri), client[name](params));
  bridge.onsizechange = ({ height }) => (frame.style.height = `${height}px`);
  bridge.onerror = (error) => log.errors.push(String(error));
  const ready = new Promise((resolve) => (bridge.onsandboxready = resolve));
  const initialized = new Promise((resolve) => (bridge.oninitialized = resolve));
  document.body.append(frame);
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  await ready;
  await bridge.sendSandboxResourceReady({ html: page.text, csp: page._meta.ui.csp });
  await initialized;
  if (input) await bridge.sendToolInput({ arguments: input });
  if (result) await bridge.sendToolResult(result);
  if (cancelled) await bridge.sendToolCancelled({ reason: cancelled });
  testHost.bridge = bridge;
}

globalThis.testHost = { connect, call, show, log };
