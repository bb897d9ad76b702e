"use strict";
// The OpenAPI document as a plain page: routes, bodies and answers, without a script from elsewhere.
(async () => {
  const spec = await (await fetch("openapi.json")).json(), place = document.getElementById("routes");
  place.style.display = "block";
  const add = (parent, tag, text) => { const node = document.createElement(tag); node.textContent = text; parent.append(node); return node; };
  const schema = (name) => spec.components.schemas[name];
  const describe = (parent, given) => {
    const names = JSON.stringify(given).match(/schemas\/(\w+)/g) || [];
    for (const name of new Set(names.map((found) => found.slice(8)))) {
      add(parent, "p", `${name}: ${schema(name).description || ""}`);
      const list = add(parent, "dl", "");
      for (const [field, kind] of Object.entries(schema(name).properties || {})) { add(list, "dt", `${field}${(schema(name).required || []).includes(field) ? "" : " (optional)"}`); add(list, "dd", kind.description || kind.title || kind.type || ""); }
    }
  };
  for (const [path, methods] of Object.entries(spec.paths)) for (const [method, route] of Object.entries(methods)) {
    const box = add(place, "details", ""), head = add(box, "summary", `${method.toUpperCase()} ${path}`);
    add(head, "span", ` — ${route.summary || ""}`);
    if (route.requestBody) { add(box, "h3", "Body"); describe(box, route.requestBody.content["application/json"].schema); }
    for (const [status, answer] of Object.entries(route.responses)) { add(box, "h3", `Answer ${status}: ${answer.description}`); if (status === "200" && answer.content) describe(box, Object.values(answer.content)[0].schema); }
  }
})();
