// Runs first in every frame of kernel HTML: tells how high it is, and hands links to the page around it.
(() => {
  const tell = (prims, value) => parent.postMessage({ prims, value }, "*");
  const measure = () => {
    const { body, documentElement: root } = document;
    if (body) tell("height", Math.max(body.scrollHeight, Math.min(root.scrollHeight, root.offsetHeight)) + 2);
  };
  addEventListener("DOMContentLoaded", () => {
    new ResizeObserver(measure).observe(document.body);
    measure();
  });
  addEventListener("load", measure);
  addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href], area[href]");
    if (!link || (link.getAttribute("href") || "").startsWith("#")) return;
    event.preventDefault();
    tell("link", String(link.href));
  }, true);
})();
