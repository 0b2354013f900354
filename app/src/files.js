// Files of a run: taken away through the host, and shown in place when they are of a kind that can be.
import { announce, bytes, h, name, visible } from "./dom.js";
import { host, readBytes, request, toBase64 } from "./host.js";

const MOST_BYTES = 64_000_000;

/** Hand a file over to the host, which asks the person where to put it. */
async function download(file, told) {
  told.textContent = "Reading…";
  try {
    const data = await readBytes(file.uri, file.size, MOST_BYTES);
    told.textContent = "";
    if (host.capabilities.downloadFile) {
      const resource = { uri: file.uri, mimeType: file.mime, blob: toBase64(data) };
      const answer = await request("ui/download-file", { contents: [{ type: "resource", resource }] });
      told.textContent = answer.isError ? "Not saved." : "Saved.";
    } else {
      // Some hosts allow frames to download by themselves; there is no way to know.
      const url = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
      h("a", { href: url, download: visible(file.name) }).click();
      URL.revokeObjectURL(url);
      told.textContent = "If nothing was saved: this client does not let apps save files. Ask for persist_artifact.";
    }
  } catch (problem) {
    told.textContent = `Not saved: ${visible(problem.message)}.`;
  }
  announce(told.textContent);
}

/** Name, kind, size and a way to take the file away. */
export function fileLine(file, ...more) {
  const told = h("span", { class: "told" });
  const label = `Download ${visible(file.name)}`;
  const save =
    file.uri &&
    host.capabilities.serverResources &&
    h("button", { type: "button", "aria-label": label, onclick: () => download(file, told) }, "Download");
  return h(
    "div",
    { class: "file" },
    // What only stands for a text that was told has a name that says nothing.
    !/(^|\/)\.shown\//.test(file.relative_path) && name(file.relative_path ?? file.name),
    h("span", { class: "kind" }, `${visible(file.mime)}, ${bytes(file.size)}`),
    ...more,
    save,
    told,
  );
}
