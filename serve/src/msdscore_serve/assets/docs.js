// The API documentation, drawn from the OpenAPI document of this service, with examples that can be sent.
import { html, render, useState } from "./preact.js";

const ROOT = new URL(".", location.href).href.replace(/\/$/, ""); // with the prefix of a proxy, if there is one
const IMAGE = "coffee.jpg"; // one of the examples of the page
const TRUE = "a cup of coffee with a spoon on a wooden table";
const FALSE = "two dogs are running through the grass";
const THEME = "msdscore-theme"; // chosen on the page

// Examples by route: multipart fields, or a JSON body whose images are replaced by the bytes of the example.
const PAIR = { form: [["caption", TRUE], ["caption", FALSE]] }; // prettier-ignore
const EXAMPLES = {
  "/v1/score": PAIR,
  "/v1/rank": PAIR,
  "/v1/explain": { query: "?fields=words", form: [["caption", FALSE]] },
  "/v1/figure": { query: "?kind=svg", form: [["caption", TRUE]] },
  "/v1/images": { form: [] },
  "/v1/reward": { json: { images: ["BASE64"], completions: [TRUE, FALSE], image_of: [0, 0] } },
};

let token = "";
const bytes = async () => (await fetch(`samples/${IMAGE}`)).blob();
const base64 = (blob) =>
  new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1]);
    reader.readAsDataURL(blob);
  });

function curl(method, path, example, locked) {
  const lines = [`curl -s ${ROOT}${path}${example?.query ?? ""}`];
  if (locked) lines.push(`-H "Authorization: Bearer $TOKEN"`);
  if (method === "get" || !example) return lines.join(" \\\n  ");
  if (example.form) {
    lines.push(`-F image=@${IMAGE}`, ...example.form.map(([name, text]) => `-F '${name}=${text}'`));
    return lines.join(" \\\n  ");
  }
  const body = JSON.stringify(example.json, null, 1).replace("BASE64", `'$(base64 -w0 ${IMAGE})'`);
  lines.push(`-H 'Content-Type: application/json'`, `-d '${body}'`);
  return lines.join(" \\\n  ");
}

async function send(method, path, example) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let body;
  if (example?.form) {
    body = new FormData();
    body.append("image", await bytes(), IMAGE);
    for (const [name, text] of example.form) body.append(name, text);
  } else if (example) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(example.json).replace("BASE64", await base64(await bytes()));
  }
  const answer = await fetch(`${ROOT}${path}${example?.query ?? ""}`, { method: method.toUpperCase(), headers, body });
  const text = await answer.text();
  const shown = answer.headers.get("content-type")?.includes("json") ? JSON.stringify(JSON.parse(text), null, 2) : text;
  return `HTTP ${answer.status}\n\n${shown.length > 6000 ? `${shown.slice(0, 6000)}\n…` : shown}`;
}

// Schemas ---------------------------------------------------------------------------------------------

let schemas = {};
const resolved = (schema) => (schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema) ?? {};
const named = (schema) => schema.$ref?.split("/").at(-1);

function typeOf(schema) {
  if (schema.$ref) return named(schema);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return schema.format === "binary" ? "file" : (schema.type ?? "any");
}

const marked = (text = "") => text.split("`").map((part, number) => (number % 2 ? html`<code>${part}</code>` : part));

const defaultOf = ({ default: value }) =>
  (value ?? "") !== "" && html` <small>default ${JSON.stringify(value)}</small>`;

function Fields({ schema }) {
  const { properties = {}, required = [], description } = resolved(schema);
  const row = ([name, field]) =>
    html`<tr key=${name}>
      <th scope="row"><code>${name}</code>${required.includes(name) && html`<small> required</small>`}</th>
      <td>${typeOf(field)}</td>
      <td>${marked(field.description)}${defaultOf(field)}</td>
    </tr>`;
  return html`${description && html`<p>${marked(description)}</p>`}
    <div class="scroll"><table><tbody>${Object.entries(properties).map(row)}</tbody></table></div>`;
}

function Body({ kind, schema }) {
  const parts = schema.anyOf ?? [schema];
  return parts.map(
    (part) => html`<h4>${kind}${named(part) ? `: ${named(part)}` : ""}</h4><${Fields} schema=${part} />`,
  );
}

// Operations ------------------------------------------------------------------------------------------

const LOCK = html`<svg class="lock" viewBox="0 0 24 24" role="img" aria-label="needs the token">
  <path d="M6 11h12v9H6zM8 11V8a4 4 0 0 1 8 0v3" />
</svg>`;

function Operation({ path, method, operation, locked }) {
  const [answer, setAnswer] = useState("");
  const example = EXAMPLES[path];
  const content = Object.entries(operation.requestBody?.content ?? {});
  const { parameters = [], responses } = operation;
  const run = () => {
    setAnswer("…");
    send(method, path, example).then(setAnswer, (error) => setAnswer(error.message));
  };
  const problems = Object.entries(responses).filter(([status]) => status >= 400);
  const answered = responses[200]?.content?.["application/json"]?.schema;
  const described = ({ name, description, schema }) => [name, { description, ...schema }];
  const query = { properties: Object.fromEntries(parameters.map(described)) };
  return html`<details class="operation" data-path=${path}>
    <summary>
      <b class=${method}>${method.toUpperCase()}</b> <code>${path}</code>${" "}
      <span>${operation.summary}</span>${locked && LOCK}
    </summary>
    <h3>Example</h3>
    <pre class="example">${curl(method, path, example, locked)}</pre>
    <p><button type="button" class="send" onClick=${run}>Send it</button></p>
    ${answer && html`<pre class="answer" tabindex="0" aria-live="polite">${answer}</pre>`}
    ${parameters.length > 0 && html`<h3>Query</h3><${Fields} schema=${query} />`}
    ${content.length > 0 && html`<h3>Request</h3>`}
    ${content.map(([kind, { schema }]) => html`<${Body} key=${kind} kind=${kind} schema=${schema} />`)}
    ${answered && html`<h3>Answer: ${typeOf(answered)}</h3><${Fields} schema=${answered} />`}
    ${
      problems.length > 0 &&
      html`<h3>Errors</h3>
        <div class="scroll"><table><tbody>
          ${problems.map(
            ([status, { description }]) =>
              html`<tr key=${status}><th scope="row">${status}</th><td>${description}</td></tr>`,
          )}
        </tbody></table></div>`
    }
  </details>`;
}

function Docs({ spec }) {
  const locked = (operation) => (operation.security ?? spec.security ?? []).some((way) => "token" in way);
  const all = Object.entries(spec.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation, locked: locked(operation) })),
  );
  const group = ({ name, description }) =>
    html`<section key=${name}>
      <h2>${name}</h2>
      <p>${description}</p>
      ${all
        .filter(({ operation }) => operation.tags?.includes(name))
        .map(
          (each) =>
            html`<${Operation}
        key=${each.path}
        ...${each}
      />`,
        )}
    </section>`;
  return html`<header>
      <h1><a href="./">msdscore</a> API <small>${spec.info.version}</small></h1>
      <p>${spec.info.summary} Machine-readable: <a href="openapi.json">openapi.json</a>.</p>
      <p>The examples use <a href=${`samples/${IMAGE}`} download>${IMAGE}</a>, a photograph of a cup of coffee.</p>
      ${
        spec.components.securitySchemes &&
        html`<label id="authorize">
          Token <input type="password" autocomplete="off" onInput=${(event) => (token = event.target.value.trim())} />
        </label>`
      }
    </header>
    ${spec.tags.map(group)}
    <section>
      <h2>Types</h2>
      ${Object.entries(schemas).map(
        ([name, schema]) =>
          html`<details key=${name}><summary><code>${name}</code></summary><${Fields} schema=${schema} /></details>`,
      )}
    </section>`;
}

async function start() {
  try {
    const theme = localStorage.getItem(THEME);
    if (theme) document.documentElement.dataset.theme = theme;
  } catch {
    // Without storage, the setting of the system is used.
  }
  const spec = await (await fetch("openapi.json")).json();
  ({ schemas } = spec.components);
  const root = document.getElementById("docs");
  root.replaceChildren();
  render(html`<${Docs} spec=${spec} />`, root);
  document.body.dataset.ready = "yes";
}

start();
