// node test-host/build.mjs FOLDER: the scripts of the test host, bundled.
import { build } from "esbuild";

const here = new URL("./", import.meta.url).pathname;
await build({
  bundle: true, format: "iife", platform: "browser", target: "es2022", logLevel: "warning", absWorkingDir: here,
  entryPoints: ["host.js", "sandbox.js"], outdir: process.argv[2],
});
