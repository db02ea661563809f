// Shows openapi.json: a list of the routes, and one of them with its schemas. Text nodes only, so that nothing of the
// document is interpreted as HTML.

const $ = (id) => document.getElementById(id);
// A path's POST comes first: it is what most readers look for.
const METHODS = ["post", "get", "put", "patch", "delete"];
let api = { paths: {}, components: {} };
let operations = [];

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function resolve(value) {
  let found = value ?? {};
  while (found.$ref) found = found.$ref.slice(2).split("/").reduce((at, name) => at[name], api);
  return found;
}

const nameOf = (schema) => schema?.$ref?.split("/").pop();

// A short name of a type.
function show(schema) {
  if (!schema) return "any";
  if (nameOf(schema)) return nameOf(schema);
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const alternatives = schema.anyOf ?? schema.oneOf;
  if (alternatives) return alternatives.map(show).join(" | ");
  if (schema.allOf) return schema.allOf.map(show).join(" & ");
  if (schema.type === "array") return `${show(schema.items ?? schema.prefixItems?.[0])}[]`;
  if (schema.type === "object" && schema.additionalProperties) return `{[name]: ${show(schema.additionalProperties)}}`;
  return schema.type ?? "any";
}

function bounds(schema) {
  const words = { minimum: "≥", exclusiveMinimum: ">", maximum: "≤", exclusiveMaximum: "<", minLength: "length ≥",
    maxLength: "length ≤", minItems: "items ≥", maxItems: "items ≤", pattern: "matches" };
  const parts = [schema, ...(schema.anyOf ?? [])];
  return parts.flatMap((part) => Object.entries(words).filter(([name]) => name in part)
    .map(([name, word]) => `${word} ${part[name]}`)).join(", ");
}

// The references of a schema that a reader may want to open.
function references(schema) {
  if (!schema || typeof schema !== "object") return [];
  if (schema.$ref) return [schema.$ref];
  const inner = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])];
  return [...inner, schema.items, schema.additionalProperties].flatMap(references);
}

function fields(schema, seen) {
  const object = resolve(schema);
  const rows = Object.entries(object.properties ?? {}).map(([name, property]) => {
    const required = (object.required ?? []).includes(name);
    const opened = references(property).filter((ref) => !seen.includes(ref))
      .map((ref) => openable({ $ref: ref }, [...seen, ref]));
    const notes = [property.description, bounds(property)].filter(Boolean).join("\n");
    return make("tr", {},
      make("td", {}, make("code", required ? { class: "required", title: "required" } : {}, name)),
      make("td", {}, make("code", {}, show(property)), ...opened),
      make("td", {}, make("p", {}, notes)));
  });
  return make("div", {},
    object.description ? make("p", {}, object.description) : null,
    rows.length ? make("table", {}, ...rows) : make("code", {}, show(object)));
}

function openable(schema, seen, open = false) {
  const details = make("details", open ? { open: "" } : {}, make("summary", {}, make("code", {}, show(schema))));
  const fill = () => { if (details.open && details.children.length === 1) details.append(fields(schema, seen)); };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

function schemas(schema) {
  const found = schema.anyOf ?? [schema];
  return found.map((one) => openable(one, references(one), found.length === 1));
}

// An example: the document's own, or one made of the schema.
function example(schema, depth = 0) {
  const found = resolve(schema);
  if (found.examples) return found.examples[0];
  if ("const" in found) return found.const;
  if (found.enum) return found.enum[0];
  const alternatives = found.anyOf ?? found.oneOf ?? found.allOf;
  if (alternatives) return example(alternatives[0], depth);
  if (found.type === "array") return depth > 4 ? [] : [example(found.items, depth + 1)];
  if (found.type === "object") {
    const names = depth > 4 ? [] : found.required ?? [];
    return Object.fromEntries(names.map((name) => [name, example(found.properties[name], depth + 1)]));
  }
  return { string: "", integer: 0, number: 0, boolean: false, null: null }[found.type] ?? null;
}

const base = new URL(".", document.baseURI).href.replace(/\/$/, "");

// The text of an example of the request's body, or null.
function exampleBody(operation) {
  const json = operation.value.requestBody?.content["application/json"];
  return json ? JSON.stringify(example(json.schema.anyOf?.[0] ?? json.schema), null, 2) : null;
}

function curl(operation) {
  const lines = [`curl ${operation.method === "get" ? "" : `-X ${operation.method.toUpperCase()} `}'${base}${operation.path}'`];
  if ($("key").value) lines.push("-H 'Authorization: Bearer KEY'");
  const body = exampleBody(operation);
  if (body !== null) lines.push("-H 'Content-Type: application/json'", `-d '${body.replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

// A form that sends the request to this server, and shows the response as it arrives.
function tryOut(operation) {
  const { method, path, value } = operation;
  const parameters = (value.parameters ?? []).map(resolve).filter((one) => one.in !== "cookie");
  const inputs = parameters.map((one) => [one, make("input", { autocomplete: "off", ...(one.required ? { required: "" } : {}) })]);
  const body = exampleBody(operation);
  const area = make("textarea", { rows: "8", spellcheck: "false" });
  area.value = body ?? "";
  const status = make("p", { role: "status" });
  const output = make("pre", { tabindex: "0", hidden: "" });
  const stop = make("button", { type: "button", hidden: "" }, "Stop");
  let running = null;
  async function send() {
    running?.abort();
    const mine = running = new AbortController();
    stop.onclick = () => mine.abort();
    stop.hidden = false;
    output.hidden = true;
    status.textContent = "Sending …";
    const query = new URLSearchParams();
    const headers = {};
    let target = path;
    for (const [one, input] of inputs) {
      if (one.in === "path") target = target.replace(`{${one.name}}`, input.value.split("/").map(encodeURIComponent).join("/"));
      else if (input.value && one.in === "query") query.append(one.name, input.value);
      else if (input.value) headers[one.name] = input.value;
    }
    if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
    if (body !== null) headers["Content-Type"] = "application/json";
    const started = performance.now();
    try {
      const response = await fetch(base + target + (query.size ? `?${query}` : ""),
        { method: method.toUpperCase(), headers, body: body === null ? undefined : area.value, signal: mine.signal });
      status.textContent = `${response.status} ${response.statusText} · ${response.headers.get("content-type") ?? "no content"}`;
      await showResponse(response, output);
      status.textContent += ` · ${Math.round(performance.now() - started)} ms`;
    } catch (error) {
      status.textContent = error.name === "AbortError" ? "Stopped." : `The server cannot be reached: ${error.message}`;
    }
    if (running === mine) stop.hidden = true;
  }
  const fieldsOf = (test) => inputs.filter(([one]) => test(one)).map(([one, input]) => make("label", {}, one.name, input));
  const headerFields = fieldsOf((one) => one.in === "header");
  const form = make("form", { class: "try" },
    ...fieldsOf((one) => one.in !== "header"),
    body === null ? null : make("label", {}, "Body", area),
    headerFields.length ? make("details", {}, make("summary", {}, "Headers"), ...headerFields) : null,
    make("p", {}, make("button", {}, "Send"), " ", stop), status, output);
  form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
  return make("details", { class: "outer" }, make("summary", {}, "Try it"), form);
}

const MAX_SHOWN = 200_000;

async function showResponse(response, output) {
  const type = response.headers.get("content-type") ?? "";
  if (!/json|text|xml/.test(type)) return;
  output.hidden = false;
  const shown = new Text();
  output.replaceChildren(shown);
  if (type.startsWith("application/json")) {
    const text = await response.text();
    try {
      shown.data = JSON.stringify(JSON.parse(text), null, 2).slice(0, MAX_SHOWN);
    } catch {
      shown.data = text.slice(0, MAX_SHOWN);
    }
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let next; !(next = await reader.read()).done;) if (shown.length < MAX_SHOWN) shown.appendData(next.value);
}

function parametersOf(operation) {
  const parameters = (operation.value.parameters ?? []).map(resolve);
  return parameters.length ? [make("h3", {}, "Parameters"), make("table", {}, ...parameters.map((parameter) =>
    make("tr", {}, make("td", {}, make("code", parameter.required ? { class: "required" } : {}, parameter.name)),
      make("td", {}, parameter.in), make("td", {}, make("code", {}, show(parameter.schema))),
      make("td", {}, make("p", {}, parameter.description ?? "")))))] : [];
}

function contentOf(content) {
  return Object.entries(content ?? {}).flatMap(([media, value]) =>
    [make("p", {}, make("code", {}, media)), ...schemas(value.schema.properties?.data?.contentSchema ?? value.schema)]);
}

function open(operation) {
  const { method, path, value } = operation;
  const responses = Object.entries(value.responses).flatMap(([status, given]) => {
    const response = resolve(given);
    return [make("h3", {}, `${status} `, make("small", {}, response.description)), ...contentOf(response.content)];
  });
  $("operation").replaceChildren(
    make("h2", {}, make("span", { class: "method" }, method.toUpperCase()), path),
    make("p", {}, value.summary, " ", make("span", { class: "tag" }, value["x-dragoman-access"] ?? "")),
    value.description ? make("p", {}, value.description) : "",
    make("pre", { tabindex: "0" }, curl(operation)),
    // Uploads are forms of several parts, and a WebSocket is no request.
    ...(value.requestBody && exampleBody(operation) === null ? [] : [tryOut(operation)]),
    ...parametersOf(operation),
    ...(value.requestBody ? [make("h3", {}, "Request"), ...contentOf(value.requestBody.content)] : []),
    ...responses);
  document.title = `${method.toUpperCase()} ${path}`;
}

function openFromHash() {
  const operation = operations.find((one) => `#${one.value.operationId}` === location.hash)
    ?? operations.find(({ method }) => method === "post") ?? operations[0];
  if (!operation) return;
  open(operation);
  for (const link of $("list").querySelectorAll("a")) {
    if (link.hash === `#${operation.value.operationId}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// Whether a route has all words somewhere: in its path, its texts, or the names of its fields.
const matches = (operation, words) => words.every((word) => operation.text.includes(word));

function list() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = operations.filter((operation) => matches(operation, words));
  const tags = [...new Set(shown.map((operation) => operation.value.tags[0]))];
  $("list").replaceChildren(...tags.flatMap((tag) => [make("h2", {}, tag),
    ...shown.filter((operation) => operation.value.tags[0] === tag).map((operation) =>
      make("a", { href: `#${operation.value.operationId}`, title: operation.value.summary },
        make("span", { class: "method" }, operation.method.toUpperCase()), operation.path))]));
  if (!shown.length) $("list").append(make("p", {}, "No route has these words."));
}

function textOf(path, value) {
  const names = references(value.requestBody?.content?.["application/json"]?.schema)
    .flatMap((ref) => Object.keys(resolve({ $ref: ref }).properties ?? {}));
  return [path, value.summary, value.description ?? "", ...value.tags, ...names].join(" ").toLowerCase();
}

async function load() {
  const key = $("key").value;
  const response = await fetch("openapi.json", key ? { headers: { Authorization: `Bearer ${key}` } } : {});
  if (!response.ok) {
    const text = response.status === 401 ? "This server needs an API key." : `The server answered ${response.status}.`;
    $("operation").replaceChildren(make("p", { class: "error" }, text));
    return;
  }
  api = await response.json();
  $("version").textContent = api.info.version;
  operations = Object.entries(api.paths).flatMap(([path, item]) => METHODS.filter((method) => item[method])
    .map((method) => ({ path, method, value: item[method], text: textOf(path, item[method]) })));
  list();
  openFromHash();
}

$("search").addEventListener("input", list);
// Enter changes the value first.
$("access").addEventListener("submit", (event) => event.preventDefault());
$("key").addEventListener("change", load);
addEventListener("hashchange", () => { openFromHash(); $("operation").focus(); });
load();
