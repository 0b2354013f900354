// plotly.js in a frame of its own: waits for a spec, draws it, tells how high it is.
import Plotly from "plotly.js-cartesian-dist-min";

const tell = (prims, value) => parent.postMessage({ prims, value }, "*");
const plot = document.getElementById("plot");

// Other frames can send messages too; only the page around this one has the spec.
addEventListener("message", async ({ source, data }) => {
  if (source !== parent || data?.prims !== "spec") return;
  try {
    const { data: given = [], layout = {}, frames = [], config = {} } = data.value;
    const known = Plotly.PlotSchema.get().traces;
    const traces = given.map((trace) => ({ ...trace, type: (trace.type ?? "scatter").replace(/^(scatter|heatmap)gl$/, "$1") }));
    const strange = traces.find((trace) => !Object.hasOwn(known, trace.type));
    if (strange) throw new Error(`plots of type ${strange.type} are not drawn here`);
    await Plotly.newPlot(plot, {
      data: traces,
      layout: { ...layout, autosize: !layout.width },
      frames,
      config: { ...config, responsive: true, displaylogo: false, modeBarButtonsToRemove: ["toImage"], showLink: false, showSendToCloud: false, plotlyServerURL: "" },
    });
    tell("height", plot.scrollHeight + 4);
    tell("drawn");
  } catch (problem) {
    tell("failed", problem.message);
  }
});
tell("ready");
