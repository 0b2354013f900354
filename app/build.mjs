// Builds prims/server/app_view/ from src/. With --check nothing is written, and what differs is named.
import { readFileSync, writeFileSync, mkdirSync, existsSync } from "node:fs";
import { gunzipSync, gzipSync } from "node:zlib";
import { build } from "esbuild";

const OUT = new URL("../prims/server/app_view/", import.meta.url);
const HERE = new URL("./", import.meta.url);
const check = process.argv.includes("--check");
const shared = { bundle: true, write: false, minify: true, target: "es2022", legalComments: "none", charset: "utf8", absWorkingDir: HERE.pathname, logLevel: "warning" };

/** `import text from "./x.js?text"`: a script as text, made small like the rest. */
const asText = {
  name: "text",
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /\?text$/ }, ({ path, resolveDir }) => ({ path: `${resolveDir}/${path.slice(0, -5)}`, namespace: "text" }));
    onLoad({ filter: /.*/, namespace: "text" }, async ({ path }) => ({ contents: await script(path), loader: "text" }));
  },
};

/** One script without imports that may stand between script tags. */
async function script(path) {
  const { outputFiles } = await build({ ...shared, entryPoints: [path], format: "iife", plugins: [asText] });
  return outputFiles[0].text.trim().replace(/<\/(script)/gi, "<\\/$1").replace(/<!--/g, "<\\!--");
}

async function style(path) {
  const { outputFiles } = await build({ ...shared, entryPoints: [path] });
  return outputFiles[0].text.trim();
}

/** The licences of all packages that went into a script. */
async function licences(paths) {
  const { metafile } = await build({ ...shared, entryPoints: paths, outdir: "unused", format: "iife", metafile: true });
  const names = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const found = input.match(/^.*node_modules\/((?:@[^/]+\/)?[^/]+)/);
    if (found) names.add(found[0]);
  }
  const packages = new Map();
  for (const folder of [...names].sort()) {
    const about = JSON.parse(readFileSync(new URL(`${folder}/package.json`, HERE), "utf8"));
    const file = ["LICENSE", "LICENSE.md", "LICENCE"].map((name) => new URL(`${folder}/${name}`, HERE)).find((file) => existsSync(file));
    if (!file) throw new Error(`${about.name} has no licence file`);
    const text = readFileSync(file, "utf8").trim().replace(/\r\n/g, "\n");
    packages.set(text, [...(packages.get(text) ?? []), `${about.name} ${about.version}`]);
  }
  const parts = [...packages].map(([text, names]) => `${names.join("\n")}\n\n${text}\n`);
  return `The scripts in this folder contain these packages.\n\n${parts.join(`\n${"-".repeat(80)}\n\n`)}`;
}

const page = readFileSync(new URL("src/page.html", HERE), "utf8");
const [run, css] = [await script("src/run.js"), await style("src/style.css")];
const libraries = ["src/inside/plotly.js", "src/inside/vega.js"];
const made = {
  "run.html": page.replace("/*style*/", () => css).replace("/*script*/", () => run),
  "plotly.js.gz": await script(libraries[0]),
  "vega.js.gz": await script(libraries[1]),
  "LICENSES.txt": await licences(libraries),
};

mkdirSync(OUT, { recursive: true });
let wrong = 0;
for (const [name, text] of Object.entries(made)) {
  const file = new URL(name, OUT);
  const packed = name.endsWith(".gz");
  // Packed bytes differ between versions of zlib, so what is in them is compared.
  const old = existsSync(file) ? (packed ? gunzipSync(readFileSync(file)) : readFileSync(file)).toString() : "";
  if (old === text) continue;
  if (check) {
    console.error(`${name} is not what the sources make: npm run build`);
    wrong = 1;
  } else {
    writeFileSync(file, packed ? gzipSync(text, { level: 9 }) : text);
    console.log(`${name}: ${text.length} characters`);
  }
}
process.exit(wrong);
