// The page: its address, the feed, the questions of the screen that is shown, and keys.
import { draw } from "/static/chart.js";
import { clock, confirmed, h, patch, plain } from "/static/page.js";
import { SCREENS } from "/static/screens.js";

const ASK_EVERY = 2000;
const RETRY = 3000;
const SPOKEN = 10000;
const HOUR = 3600;
const NAMES = { "": "Overview", tasks: "Tasks", functions: "Functions", errors: "Errors", pools: "Pools", events: "Events", mesh: "Mesh" };
const KEYS = { o: "", t: "tasks", f: "functions", e: "errors", p: "pools", v: "events", m: "mesh" };
const $ = (id) => document.getElementById(id);

// What the screens are drawn from.
const world = {
  inside: null, // true, false, or not known yet
  news: null,
  history: [], // counts of functions of the last seconds, for their rates
  flow: [],
  minutes: 5,
  allowed: [],
  answers: {}, // by the name that a screen gives to a question
  events: [],
  params: new URLSearchParams(),
  go,
  act,
  redraw,
};
let stream = null;
let screen = SCREENS[""];
let shownHash = "";
let paused = false;
let lost = "";
let spoken = 0;
let searching = false; // the field gets the focus as soon as it is there

// --- address ---

function go(name, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value);
  location.hash = `#/${name}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

async function route() {
  if (location.hash.startsWith("#t=")) {
    const token = location.hash.slice(3);
    history.replaceState(null, "", "#/"); // before all else: the token stays in no address
    await enter(token);
  }
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const next = SCREENS[path] ?? SCREENS[""];
  const moved = location.hash !== shownHash;
  world.params = new URLSearchParams(query ?? "");
  if (moved) world.answers = {};
  shownHash = location.hash;
  if (next !== screen) {
    screen = next;
    $("main").replaceChildren();
    scrollTo(0, 0);
  }
  const nav = Object.entries(NAMES).map(([name, title]) => h("a", { href: `#/${name}`, "aria-current": (SCREENS[name] === screen || (name === "tasks" && path === "task")) && "page" }, title));
  $("nav").replaceChildren(...nav);
  document.title = `${screen.title} · taskmesh`;
  redraw();
  await questions();
}

// --- the session ---

async function sent(path, value) {
  const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });
  const found = await response.json();
  if (!response.ok) throw new Error(found.error);
  return found;
}

async function enter(token) {
  try {
    await sent("/session", { token });
    world.inside = true;
    listen();
    return "";
  } catch (error) {
    world.inside = false;
    return error.message;
  }
}

function login() {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const told = h("p", { role: "status" });
  const submit = async (event) => {
    event.preventDefault();
    told.textContent = await enter(field.value);
    if (world.inside) route();
  };
  return h(
    "form",
    { class: "panel login", onsubmit: submit },
    h("h1", null, "taskmesh"),
    h("p", null, "Open the address that ", h("code", null, "taskmesh dashboard"), " has printed, or show its token here."),
    h("label", { for: "token" }, "Token"),
    h("div", { class: "row" }, field, h("button", { class: "primary" }, "Enter")),
    told,
  );
}

// --- the feed ---

function listen() {
  stream?.close();
  if (paused || document.hidden || world.inside === false) return;
  stream = new EventSource("/feed");
  stream.addEventListener("start", (event) => {
    const { allowed, flow } = JSON.parse(event.data);
    Object.assign(world, { allowed, flow, inside: true });
  });
  stream.onmessage = (event) => take(JSON.parse(event.data));
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED) return missing("The dashboard does not answer.");
    again();
  };
}

// A feed that is refused says no more than that: ask why, and come back.
async function again() {
  try {
    const response = await fetch("/ask/nothing");
    if (response.status === 401) {
      world.inside = false;
      redraw();
      return;
    }
    missing(response.status === 404 ? "Too many pages are open: close some." : "The dashboard does not answer.");
  } catch {
    missing("The dashboard does not answer.");
  }
  setTimeout(listen, RETRY);
}

function missing(text) {
  lost = text;
  foot();
}

function take(news) {
  lost = "";
  world.news = news.error ? { ...world.news, at: news.at, error: news.error } : news;
  if (!news.error) {
    for (const point of news.flow) if (point[0] > (world.flow.at(-1)?.[0] ?? 0)) world.flow.push(point);
    world.flow = world.flow.filter((point) => point[0] > news.at - HOUR);
    world.history = [...world.history.slice(-10), { at: news.at, functions: Object.fromEntries(news.status.functions.map((each) => [each.name, each.succeeded + each.failed + each.cancelled])) }];
    speak(news.status.verdicts);
  }
  redraw();
}

function speak(verdicts) {
  if (Date.now() - spoken < SPOKEN) return;
  const text = verdicts.map(plain).join(". ");
  if ($("live").textContent !== text) {
    $("live").textContent = text;
    spoken = Date.now();
  }
}

// --- questions ---

async function ask(what, argument = "", limit = 100) {
  const response = await fetch(`/ask/${what}?${new URLSearchParams({ argument, limit })}`);
  const found = await response.json();
  if (response.status === 401) world.inside = false;
  if (!response.ok) throw new Error(found.error);
  return found;
}

async function questions() {
  if (!world.inside || !screen.questions) return;
  const hash = shownHash;
  for (const [name, ...question] of screen.questions(world)) {
    let found;
    try {
      found = await ask(...question);
    } catch (error) {
      found = { error: error.message };
    }
    if (hash !== shownHash) return; // meanwhile another screen is shown
    world.answers[name] = name === "events" && Array.isArray(found) ? gathered(found) : found;
  }
  redraw();
}

// Events come with their age; those that are here already stay as they are.
function gathered(found) {
  const last = world.events.at(-1)?.number ?? 0;
  if (found.length && found.at(-1).number < last) world.events = []; // another hub counts anew
  const known = world.events.at(-1)?.number ?? 0;
  const now = Date.now() / 1000;
  world.events.push(...found.filter((event) => event.number > known).map((event) => ({ ...event, at: now - event.ago })));
  world.events = world.events.slice(-1000);
  return world.events;
}

async function act(verb, target, text, button) {
  if (text && !(await confirmed(text, button))) return;
  try {
    await sent(`/do/${verb}`, { target });
    world.told = "";
  } catch (error) {
    world.told = error.message;
  }
  await questions();
  redraw();
}

// --- drawing ---

function redraw() {
  foot();
  if (world.inside === false) {
    if (!document.querySelector(".login")) $("main").replaceChildren(login());
    return;
  }
  if (!world.news?.status) return $("main").replaceChildren(h("p", { class: "none" }, world.news?.error ? "No hub has answered yet." : "Waiting for the hub …"));
  const fresh = h("div", { id: "screen" }, h("h1", null, screen.title), world.told ? h("p", { class: "silent", role: "status" }, world.told) : null, screen.draw(world));
  if ($("screen")) patch($("screen"), fresh);
  else $("main").replaceChildren(fresh);
  if (searching && $("search")) {
    $("search").focus();
    searching = false;
  }
  const since = world.news.at - world.minutes * 60;
  draw(world.flow.filter((point) => point[0] > since), world.events.filter((event) => /^pool\.(joined|left)$/.test(event.kind)), document.documentElement.dataset.theme ?? "");
}

function foot() {
  const { news } = world;
  const silent = lost || news?.error || "";
  $("silent").hidden = !silent;
  if ($("silent").textContent !== plain(silent)) $("silent").textContent = plain(silent);
  $("foot").textContent = news?.status ? `${paused ? "Paused. " : ""}Data of ${clock(news.at)}. Hub since ${new Date(news.status.epoch).toLocaleString("en-GB")}.` : "";
}

// --- keys and buttons ---

function pause() {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  listen();
  foot();
}

function theme() {
  const root = document.documentElement.dataset;
  const dark = root.theme ? root.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.theme = dark ? "light" : "dark";
  localStorage.setItem("taskmesh-theme", root.theme);
  redraw();
}

function help() {
  const keys = [["/", "search tasks"], ...Object.entries(KEYS).map(([key, name]) => [key, NAMES[name]]), ["r", "pause or go on"], ["d", "light or dark"], ["?", "these keys"]];
  const dialog = h("dialog", { "aria-label": "Keys" }, h("dl", { class: "facts" }, keys.map(([key, what]) => h("div", null, h("dt", null, h("kbd", null, key)), h("dd", null, what)))), h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close"));
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  dialog.showModal();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const buttons = { r: pause, d: theme, "?": help };
  if (buttons[event.key]) buttons[event.key]();
  else if (event.key in KEYS) go(KEYS[event.key]);
  else if (event.key === "/") {
    event.preventDefault();
    if (screen !== SCREENS.tasks) go("tasks");
    searching = true;
    redraw();
  }
});
addEventListener("hashchange", route);
addEventListener("resize", redraw);
document.addEventListener("visibilitychange", listen);
$("pause").onclick = pause;
$("theme").onclick = theme;
$("help").onclick = help;
$("leave").onclick = async () => {
  await sent("/session/end", {}).catch(() => null);
  stream?.close();
  world.inside = false;
  redraw();
};
setInterval(() => !paused && !document.hidden && questions(), ASK_EVERY);
await route();
if (world.inside === null) listen();
