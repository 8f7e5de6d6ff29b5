// Elements, made without markup; and texts. All that comes from a mesh is hostile: it becomes text nodes, nothing else.

// Control characters, and those that turn the direction of text or cannot be seen.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const LONGEST = 20000;
const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange"];

export function plain(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const cut = text.length > LONGEST ? `${text.slice(0, LONGEST)} … (${text.length.toLocaleString("en")} characters)` : text;
  return cut.replace(ODD, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// Make an element: h("a", {href: "#/", class: "x", onclick: f}, "text", node, [nodes], null).
export function h(tag, given, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given ?? {})) {
    if (HANDLERS.includes(name)) element[name] = value;
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(plain(child)));
  }
  return element;
}

// Make `old` like `fresh`, and keep what is the same: focus, selection and scroll position stay where they are.
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) old[name] = fresh[name];
  if (old.hasAttribute("data-keep")) return; // its content is somebody else's: a chart, a field
  const [were, are] = [[...old.childNodes], [...fresh.childNodes]];
  are.forEach((node, at) => (at < were.length ? patch(were[at], node) : old.append(node)));
  were.slice(are.length).forEach((node) => node.remove());
}

// --- figures ---

export const count = (number) => (number ?? 0).toLocaleString("en");

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  if (value < 120) return `${Number(value.toPrecision(3))} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

export const rate = (value) => (value === undefined ? "–" : `${value >= 10 ? count(Math.round(value)) : Number(value.toPrecision(2))}/s`);

export const clock = (epoch) => new Date(epoch * 1000).toLocaleTimeString("en-GB");

export function bytes(value) {
  const unit = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < 4; at++) value /= 1024;
  return `${at ? value.toFixed(1) : value} ${unit[at]}`;
}

// --- parts of screens ---

// A table: columns are [title, cell(row), class]. On narrow screens each row is a block, and cells have their titles.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "none" }, empty);
  const head = columns.map(([title, , kind]) => h("th", { scope: "col", role: "columnheader", class: kind }, title));
  const line = (row) =>
    columns.map(([title, cell, kind], at) =>
      h(at ? "td" : "th", { scope: at ? null : "row", role: at ? "cell" : "rowheader", class: kind, "data-title": title }, cell(row)),
    );
  return h(
    "table",
    { role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, line(row)))),
  );
}

export const panel = (title, ...content) => h("section", { class: "panel" }, h("h2", null, title), content);

export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== undefined && value !== "").map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));

const STATES = { failed: "bad", dead: "bad", lost: "bad", expired: "bad", succeeded: "good", running: "busy", ready: "good", paused: "odd", draining: "odd", cut: "bad" };
export const kindOf = (state) => STATES[state] ?? "";
export const badge = (state) => h("span", { class: `badge ${kindOf(state)}` }, String(state));

export const task = (id) => h("a", { href: `#/task?id=${encodeURIComponent(id)}`, class: "id", title: id }, `${id.slice(0, 6)}…${id.slice(-6)}`);

// A command to be copied. Ids and names of pools stand in quotes unless they are plain words.
export function copied(...words) {
  const quoted = words.map((word) => (/^[\w./:=-]+$/.test(word) ? word : `'${plain(word).replaceAll("'", "'\\''")}'`));
  const line = `taskmesh ${quoted.join(" ")}`;
  return h(
    "span",
    { class: "command" },
    h("code", null, line),
    h("button", { type: "button", "aria-label": `Copy ${line}`, onclick: (event) => copy(event.target, line) }, "Copy"),
  );
}

async function copy(button, line) {
  try {
    await navigator.clipboard.writeText(line);
    button.textContent = "Copied";
  } catch {
    const range = document.createRange(); // no clipboard without TLS beyond loopback: mark it instead
    range.selectNodeContents(button.previousSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }
}

// Ask before something is done; resolves to true or false.
export function confirmed(text, button) {
  return new Promise((done) => {
    const close = (answer) => () => {
      dialog.close();
      dialog.remove();
      done(answer);
    };
    const dialog = h(
      "dialog",
      { "aria-label": button },
      h("p", null, text),
      h("div", { class: "row" }, h("button", { type: "button", class: "primary", onclick: close(true) }, button), h("button", { type: "button", onclick: close(false) }, "Leave it")),
    );
    dialog.oncancel = close(false);
    document.body.append(dialog);
    dialog.showModal();
  });
}
