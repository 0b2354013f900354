// Vega and Vega-Lite in a frame of their own: expressions are interpreted, as no code may be made from text there.
import * as vega from "vega";
import { expressionInterpreter } from "vega-interpreter";
import { compile } from "vega-lite";

const tell = (prims, value) => parent.postMessage({ prims, value }, "*");
const plot = document.getElementById("plot");
document.body.style.padding = "8px";

// Other frames can send messages too; only the page around this one has the spec.
addEventListener("message", async ({ source, data }) => {
  if (source !== parent || data?.prims !== "spec") return;
  try {
    const given = data.value;
    const lite = !String(given.$schema).includes("/vega/");
    const spec = lite ? compile(given, { logger: vega.logger(vega.Error) }).spec : given;
    const view = new vega.View(vega.parse(spec, null, { ast: true }), {
      expr: expressionInterpreter,
      container: plot,
      renderer: "svg",
      hover: true,
      logLevel: vega.Error,
    });
    await view.runAsync();
    const measure = () => tell("height", plot.scrollHeight + 20);
    new ResizeObserver(measure).observe(plot);
    measure();
    tell("drawn");
  } catch (problem) {
    tell("failed", problem.message);
  }
});
tell("ready");
