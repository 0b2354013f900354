// The sandbox proxy of the test host: on an origin of its own, between the host's page and the app's.
// https://github.com/modelcontextprotocol/ext-apps/blob/main/specification/2026-01-26/apps.mdx
const inner = document.createElement("iframe");
inner.id = "app";
inner.setAttribute("sandbox", "allow-scripts allow-same-origin allow-forms");
inner.style = "border:0;width:100%;height:100%;display:block";
document.body.append(inner);
const parentOrigin = new URL(document.referrer).origin;

addEventListener("message", ({ source, origin, data }) => {
  if (source === parent && origin === parentOrigin) {
    if (data?.method === "ui/notifications/sandbox-resource-ready") {
      inner.contentDocument.open();
      inner.contentDocument.write(data.params.html);
      inner.contentDocument.close();
    } else inner.contentWindow.postMessage(data, "*");
  } else if (source === inner.contentWindow) parent.postMessage(data, parentOrigin);
});
parent.postMessage({ jsonrpc: "2.0", method: "ui/notifications/sandbox-proxy-ready", params: {} }, parentOrigin);
