# Run by tests: outputs that try to get out of their frames. Whatever is reached of CANARY is noticed.
# ruff: noqa
CANARY = "http://127.0.0.1:9"
from IPython.display import HTML, SVG, display

attack = '''
try { parent.canary = "dead" } catch (e) {}
try { top.canary = "dead" } catch (e) {}
for (const target of [parent, parent.parent, top])
  target.postMessage({jsonrpc: "2.0", id: 9, method: "tools/call", params: {name: "run_code", arguments: {code: "1"}}}, "*");
for (const name of ["height", "link", "ready", "failed"]) parent.postMessage({prims: name, value: "javascript:1"}, "*");
fetch("{CANARY}/fetch").catch(() => 0);
new Image().src = "{CANARY}/image";
document.body.append(Object.assign(document.createElement("iframe"), {src: "{CANARY}/frame"}));
document.body.append(Object.assign(document.createElement("p"), {textContent: "script was run"}));
'''.replace("{CANARY}", CANARY)
display(HTML(f"<p>first</p><script>{attack}; location = CANARY + '/away'; </script>".replace("CANARY", repr(CANARY))))
display(HTML(f'''<p>second</p><img src=x onerror="{attack.replace('"', "'")}"><img src="{CANARY}/img.png">
<link rel=stylesheet href="{CANARY}/style.css"><link rel=preconnect href="{CANARY}"><link rel=prefetch href="{CANARY}/pre">
<meta http-equiv=refresh content="0;url={CANARY}/refresh"><base href="{CANARY}/base/"><iframe src="{CANARY}/frame"></iframe>
<object data="{CANARY}/object"></object><embed src="{CANARY}/embed"><video src="{CANARY}/video" autoplay></video>
<style>@import "{CANARY}/import.css"; p {{ background: url({CANARY}/css.png) }} @font-face {{ font-family: x; src: url({CANARY}/f) }} p {{ font-family: x }}</style>
<form action="{CANARY}/form"><button>send</button></form><a href="javascript:parent.canary='dead'">javascript link</a>
<a id=leak href="{CANARY}/link" ping="{CANARY}/ping" target=_top>link</a><svg><image href="{CANARY}/svg.png"/></svg></body></html>'''))
display(SVG(f'''<svg xmlns="http://www.w3.org/2000/svg" width="30" height="30" onload="top.canary='dead'"><script>top.canary='dead'</script>
<image href="{CANARY}/in-svg.png" width="9" height="9"/><rect width="20" height="20"/></svg>'''))
cell = "<td><img src=x onerror=&quot;top.canary='dead'&quot;><script>top.canary='dead'</script>cell {}</td>"
rows = "".join("<tr><th>%d</th>%s</tr>" % (i, cell.format(i)) for i in range(50_000))
display(HTML(f"<table class='dataframe'><thead><tr><th></th><th>c<script>top.canary='dead'</script></th></tr></thead>{rows}</table>"))
display({"application/vnd.plotly.v1+json": {"data": [{"x": [1], "y": [1], "text": ["<img src=x onerror=parent.canary='dead'>"],
    "mode": "text"}], "layout": {"title": {"text": "<a href='javascript:parent.canary=1'>x</a><script>parent.canary='dead'</script>"},
    "images": [{"source": CANARY + "/plotly.png", "x": 0, "y": 1, "sizex": 1, "sizey": 1}]}}, "text/plain": "hostile plot"}, raw=True)
display({"application/vnd.vega.v5+json": {"$schema": "https://vega.github.io/schema/vega/v5.json",
    "data": [{"name": "d", "url": CANARY + "/data.json"}], "signals": [{"name": "s",
    "update": "constructor.constructor('parent.canary=1')()"}], "marks": [{"type": "image", "encode": {"enter": {"url": {"value": CANARY + "/vega.png"}}}}]},
    "text/plain": "hostile chart"}, raw=True)
display({"text/latex": "<img src=x onerror=top.canary='dead'>", "text/plain": "x"}, raw=True)
open("output/<img src=x onerror=top.canary='dead'>.csv", "w").write("a,b\n=1+1,\"<script>top.canary='dead'</script>\"")
print("<script>top.canary='dead'</script>" + "line\n" * 100)
raise type("<img src=x onerror=top.canary=1>", (Exception,), {})("<script>top.canary='dead'</script>")
