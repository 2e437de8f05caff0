"""The page that shows the OpenAPI document, without anything from elsewhere."""

from __future__ import annotations

DOCS_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dandelion: HTTP interface</title>
<link rel="icon" href="data:,">
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
         color: CanvasText; background: Canvas; color-scheme: light dark }
  summary { cursor: pointer; padding: .4rem 0; border-bottom: 1px solid GrayText }
  code, pre { font: 14px/1.45 ui-monospace, monospace }
  pre { overflow: auto; padding: .75rem; border: 1px solid GrayText; border-radius: .4rem }
  .method { display: inline-block; min-width: 4.5rem; font-weight: 700 }
  table { border-collapse: collapse } td { padding: .15rem 1rem .15rem 0; vertical-align: top }
</style>
<h1>Dandelion</h1>
<p>Everything below comes from <a href="openapi.json">openapi.json</a> of this node.</p>
<main id="routes"><noscript>Without scripts, read openapi.json itself.</noscript></main>
<script>
const node = (tag, text, cls) => {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (cls) made.className = cls;
  return made;
};
const show = (title, value) => {
  const box = node("div");
  box.append(node("h4", title), node("pre", JSON.stringify(value, null, 2)));
  return box;
};
fetch("openapi.json").then(response => response.json()).then(spec => {
  const routes = document.getElementById("routes");
  const resolve = value => JSON.parse(JSON.stringify(value, (key, part) =>
    part && part.$ref ? { $ref: part.$ref.split("/").pop() } : part));
  for (const [path, methods] of Object.entries(spec.paths))
    for (const [method, operation] of Object.entries(methods)) {
      const details = node("details"), summary = node("summary"), table = node("table");
      summary.append(node("span", method.toUpperCase(), "method"), node("code", path),
        document.createTextNode("  " + operation.summary));
      for (const given of operation.parameters || []) {
        const row = table.insertRow();
        row.insertCell().append(node("code", given.name));
        row.insertCell().textContent = given.in;
        row.insertCell().textContent = given.description || given.schema.type;
      }
      details.append(summary, table);
      const body = operation.requestBody;
      if (body) details.append(show("Body", resolve(body.content)));
      details.append(show("Response", resolve(operation.responses["200"].content)));
      routes.append(details);
    }
  routes.append(node("h2", "Schemas"));
  for (const [name, schema] of Object.entries(spec.components.schemas)) {
    const details = node("details");
    details.append(node("summary", name), node("pre", JSON.stringify(resolve(schema), null, 2)));
    routes.append(details);
  }
});
</script>
</html>
"""
