// The screens: each has a title, the questions that it asks the hub besides the feed, and draws what is known.
import { flow } from "/static/chart.js";
import { badge, bytes, clock, copied, count, facts, h, kindOf, panel, rate, seconds, table, task } from "/static/page.js";

const SHOWN = 500;
const CELLS = 64;
const text = (value) => (Array.isArray(value) ? value.join(", ") : value);
const share = (part, whole) => (whole ? `${Number(((100 * part) / whole).toPrecision(2))} %` : "–");

// An answer of the hub, drawn; or why there is none.
function answered(found, drawn) {
  if (found === undefined) return h("p", { class: "none" }, "Waiting for the hub …");
  if (found.error && !Array.isArray(found)) return h("p", { class: "none" }, found.error);
  return drawn(found);
}

// --- overview ---

const tile = (name, value, kind, link) => h(link ? "a" : "div", { class: `tile ${kind ?? ""}`, href: link }, h("span", null, name), h("b", null, value));

function tiles({ status, totals }) {
  const { tasks, ended } = status;
  const bad = ended.failed + ended.expired + ended.dead + ended.lost;
  const states = ["queued", "running"].map((state) => tile(state, count(tasks[state]), "", `#/tasks?state=${state}`));
  return h(
    "div",
    { class: "tiles" },
    states,
    tile("succeeded", count(ended.succeeded), "good", "#/tasks?state=succeeded"),
    tile("failed", count(bad), bad ? "bad" : "", "#/tasks?state=failed"),
    tile("slots busy", `${count(totals.busy)} / ${count(totals.slots)}`, "", "#/pools"),
    tile("clients", count(totals.clients), "", "#/mesh"),
  );
}

function verdicts({ verdicts: said }) {
  return panel("Verdicts", said.length ? h("ol", { class: "verdicts" }, said.map((each) => h("li", null, each))) : h("p", { class: "fine" }, "Nothing is wrong, as far as the hub can tell."));
}

function queues(rows) {
  return table(
    "Queues",
    [
      ["queue", (row) => row.queue],
      ["tags", (row) => text(row.tags) || "–"],
      ["waiting", (row) => count(row.waiting), "number"],
      ["oldest waits", (row) => (row.waiting ? seconds(row.oldest) : "–"), "number"],
      ["pools", (row) => (row.pools ? count(row.pools) : "none serves it"), "number"],
      ["busy", (row) => `${count(row.busy)} / ${count(row.slots)}`, "number"],
    ],
    rows,
    "No task waits.",
  );
}

function cells(pool) {
  const all = Math.min(pool.slots, CELLS);
  const made = Array.from({ length: all }, (_, at) => h("i", { class: `cell ${pool.state === "ready" ? (at < pool.busy ? "busy" : "idle") : pool.state}` }));
  return h("span", { class: "cells", role: "img", "aria-label": `${pool.busy} of ${pool.slots} slots busy` }, made, pool.slots > CELLS ? ` +${count(pool.slots - CELLS)}` : "");
}

const pools = (found, totals, actions) => [
  table(
    "Pools",
    [
      ["pool", (pool) => pool.pool],
      ["state", (pool) => badge(pool.state)],
      ["slots", cells],
      ["busy", (pool) => `${count(pool.busy)} / ${count(pool.slots)}`, "number"],
      ["holds", (pool) => count(pool.outstanding), "number"],
      ["queues", (pool) => text(pool.queues)],
      ["heard", (pool) => `${seconds(pool.heard)} ago`, "number"],
      ...actions,
    ],
    found,
    "No pool is here: start one with `taskmesh worker`.",
  ),
  totals.pools > found.length ? h("p", { class: "none" }, `The first ${count(found.length)} of ${count(totals.pools)} pools.`) : null,
];

const errorLine = (group) => h("span", null, h("b", null, group.name), ": ", group.type || group.kind, group.place ? ` at ${group.place}` : "");

const overview = {
  title: "Overview",
  questions: () => [["events", "events", "", SHOWN], ["errors", "errors", "", 5]],
  draw: (world) => {
    const { news, answers } = world;
    const since = news.at - world.minutes * 60;
    const choose = (minutes) => {
      world.minutes = minutes;
      world.redraw();
    };
    const groups = (found) =>
      table("Errors of late", [["error", errorLine], ["count", (group) => count(group.count), "number"], ["last", (group) => clock(group.last), "number"]], found.groups, "No task has failed since the hub has started.");
    return [
      verdicts(news.status),
      tiles(news),
      panel("Flow", flow(world.flow.filter((point) => point[0] > since), world.minutes, choose)),
      panel("Queues", queues(news.status.queues)),
      panel("Pools", pools(news.status.pools, news.totals, [])),
      panel("Errors of late", answered(answers.errors, groups)),
    ];
  },
};

// --- tasks ---

const ANY = "on their way";
const STATES = [ANY, "queued", "running", "failed", "succeeded"];

// Words of a search: name:x queue:y pool:z id:w, each a part of it; a word alone is a part of the name or the id.
function fits(row, search) {
  return search.split(/\s+/).filter(Boolean).every((word) => {
    const [, key, part] = word.match(/^(name|queue|pool|id):(.*)$/) ?? [null, "", word];
    const fields = { name: [row.name], queue: [row.queue], pool: [row.pool], id: [row.task_id] }[key] ?? [row.name, row.task_id];
    return fields.some((field) => String(field).toLowerCase().includes(part.toLowerCase()));
  });
}

const tasks = {
  title: "Tasks",
  questions: ({ params }) => [["tasks", "tasks", params.get("state") ?? "", SHOWN]],
  draw: (world) => {
    const state = world.params.get("state") ?? "";
    const search = world.params.get("search") ?? "";
    const choose = (event) => world.go("tasks", { state: event.target.value === ANY ? "" : event.target.value, search });
    const find = (event) => {
      event.preventDefault();
      const wanted = document.getElementById("search").value.trim();
      if (/^[0-9a-f]{32}$/.test(wanted)) world.go("task", { id: wanted });
      else world.go("tasks", { state, search: wanted });
    };
    const list = (found) => {
      const rows = found.filter((row) => fits(row, search));
      const { tasks: counts, ended } = world.news.status;
      const all = state ? (counts[state] ?? ended[state]) : Object.values(counts).reduce((sum, each) => sum + each, 0);
      return [
        h("p", { class: "faint" }, `${count(rows.length)} of ${search ? `the first ${count(found.length)} of ` : ""}${count(Math.max(all, found.length))} tasks, ${state || ANY}`),
        table(
          "Tasks",
          [
            ["task", (row) => task(row.task_id)],
            ["state", (row) => badge(row.state)],
            ["name", (row) => row.name],
            ["queue", (row) => row.queue],
            ["attempt", (row) => count(row.attempt), "number"],
            ["pool", (row) => row.pool || "–"],
          ],
          rows,
          "No such tasks.",
        ),
      ];
    };
    return [
      h(
        "form",
        { class: "row filter", onsubmit: find },
        h("label", null, "State ", h("select", { onchange: choose }, STATES.map((each) => h("option", { value: each, selected: each === (state || ANY) }, each)))),
        h("label", { class: "wide" }, "Search ", h("input", { id: "search", type: "search", value: search, "data-keep": true, placeholder: "name: queue: pool: id:" })),
        h("button", null, "Find"),
      ),
      answered(world.answers.tasks, list),
      h("p", { class: "faint" }, copied("tasks", ...(state ? ["--state", state] : []))),
    ];
  },
};

// --- one task ---

const WAY = ["accepted", "queued", "running"];

function way(now) {
  const steps = WAY.includes(now) ? [...WAY, "ended"] : [...WAY, now];
  return h("ol", { class: "way" }, steps.map((step, at) => h("li", { class: at < steps.indexOf(now) ? "past" : kindOf(now), "aria-current": step === now && "step" }, step)));
}

function logs(found) {
  const lines = found.lines.reverse().map((line) => h("li", { class: /^(error|critical)$/i.test(line.level) ? "bad" : "" }, h("time", null, clock(line.time)), ` ${line.level} ${line.logger}: ${line.text}`));
  return lines.length ? h("ol", { class: "log", tabindex: 0, "aria-label": "Log" }, lines) : h("p", { class: "none" }, "It has logged nothing.");
}

const isOpen = (found) => ["queued", "running"].includes(found?.state);

function story(world, id, found) {
  const running = found.state === "running";
  const cancel = () => world.act("cancel", id, `Cancel this task (${found.state})? It ends as cancelled, for all who wait for it.`, "Cancel the task");
  return [
    way(found.state),
    h("p", { class: "why" }, found.why),
    facts([
      ["name", found.name],
      ["queue", found.queue],
      ["attempt", found.attempt || undefined],
      ["pool", found.pool || found.worker],
      ["key of its program", found.user],
      ["priority", found.priority],
      ["tags", found.tags && text(found.tags)],
      ["arguments", found.bytes !== undefined ? bytes(found.bytes) : undefined],
      ["failed attempts", found.errors || undefined],
      ["crashes", found.crashes || undefined],
      ["out of memory", found.ooms || undefined],
      ["lost with pools", found.losses || undefined],
    ]),
    h(
      "p",
      { class: "row" },
      isOpen(found) && world.allowed.includes("cancel") ? h("button", { type: "button", class: "danger", onclick: cancel }, "Cancel the task") : null,
      running && world.allowed.includes("stack") ? h("button", { type: "button", onclick: () => world.act("stack", id) }, "Log its stack") : null,
    ),
    found.history?.length ? panel("History", h("ol", { class: "history" }, found.history.map((entry) => h("li", null, entry)))) : null,
  ];
}

const oneTask = {
  title: "Task",
  questions: ({ params }) => [["task", "task", params.get("id") ?? ""], ["logs", "logs", params.get("id") ?? "", 200]],
  draw: (world) => {
    const id = world.params.get("id") ?? "";
    const { logs: lines, task: found } = world.answers;
    return [
      h("p", null, h("code", null, id)),
      answered(found, () => story(world, id, found)),
      panel("Log, the latest first", lines?.error ? h("p", { class: "none" }, lines.error) : answered(lines, logs)),
      panel("As a command", copied("explain", id), copied("logs", id, "--follow"), found?.state === "running" ? copied("stack", id) : null, isOpen(found) ? copied("cancel", id) : null),
    ];
  },
};

// --- functions ---

function speed(world, name) {
  const [first, last] = [world.history[0], world.history.at(-1)];
  if (!first || last.at - first.at < 1) return undefined;
  return Math.max(0, (last.functions[name] ?? 0) - (first.functions[name] ?? 0)) / (last.at - first.at);
}

const functions = {
  title: "Functions",
  draw: (world) => {
    const times = ["run", "wait"].flatMap((what) => ["p50", "p95", "p99"].map((each) => [`${what} ${each}`, (row) => seconds(row[what][each]), "number"]));
    return [
      h("p", { class: "faint" }, "Those with most tasks, since the hub has started. Run: in the slot. Wait: from acceptance to the slot."),
      table(
        "Functions",
        [
          ["function", (row) => h("a", { href: `#/tasks?search=${encodeURIComponent(`name:${row.name}`)}` }, row.name)],
          ["rate", (row) => rate(speed(world, row.name)), "number"],
          ["ended", (row) => count(row.succeeded + row.failed + row.cancelled), "number"],
          ["failed", (row) => share(row.failed, row.succeeded + row.failed + row.cancelled), "number"],
          ...times,
          ["slot time", (row) => seconds(row.slot_seconds), "number"],
        ],
        world.news.status.functions,
        "No task has ended yet.",
      ),
    ];
  },
};

// --- errors ---

function group(found) {
  const samples = found.samples.map((sample) =>
    h("li", null, h("p", null, task(sample.task), ` attempt ${sample.attempt} on ${sample.worker}: `, h("b", null, sample.text)), sample.traceback ? h("pre", { tabindex: 0 }, sample.traceback) : null),
  );
  return h(
    "details",
    { class: "panel group" },
    h("summary", null, h("span", { class: "many" }, count(found.count)), " ", errorLine(found), h("span", { class: "faint" }, ` first ${clock(found.first)}, last ${clock(found.last)}`)),
    samples.length ? h("ol", { class: "samples" }, samples) : h("p", { class: "none" }, "No sample is kept, or none is told to this key."),
    copied("errors", found.name),
  );
}

const errors = {
  title: "Errors",
  questions: ({ params }) => [["errors", "errors", params.get("search") ?? "", 100]],
  draw: (world) => {
    const search = world.params.get("search") ?? "";
    const find = (event) => {
      event.preventDefault();
      world.go("errors", { search: document.getElementById("wanted").value.trim() });
    };
    return [
      h("form", { class: "row filter", onsubmit: find }, h("label", { class: "wide" }, "Function, type or place ", h("input", { id: "wanted", type: "search", value: search, "data-keep": true })), h("button", null, "Find")),
      answered(world.answers.errors, ({ groups, ungrouped }) => [
        groups.length ? groups.map(group) : h("p", { class: "none" }, search ? "No such errors." : "No task has failed since the hub has started."),
        ungrouped ? h("p", { class: "faint" }, `${count(ungrouped)} failed attempts are left out: their groups are not kept any more.`) : null,
      ]),
    ];
  },
};

// --- pools ---

const CONFIRM = {
  pause: (pool) => `Pause pool ${pool.pool}? It takes no new work; its ${pool.busy} running tasks continue.`,
  resume: (pool) => `Let pool ${pool.pool} take work again, with ${pool.slots} slots?`,
  drain: (pool) => `Drain pool ${pool.pool}? Its ${pool.busy} running tasks may end, the others of ${pool.outstanding} go back to the hub, and the pool ends.`,
};

function fitting(world, pool) {
  const verbs = pool.state === "paused" ? ["resume", "drain"] : pool.state === "ready" ? ["pause", "drain"] : [];
  return verbs
    .filter((verb) => world.allowed.includes(verb))
    .map((verb) => h("button", { type: "button", "aria-label": `${verb} ${pool.pool}`, onclick: () => world.act(verb, pool.pool, CONFIRM[verb](pool), `${verb[0].toUpperCase()}${verb.slice(1)} the pool`) }, verb));
}

const poolScreen = {
  title: "Pools",
  draw: (world) => {
    const more = [
      ["tags", (pool) => text(pool.tags) || "–"],
      ["host", (pool) => `${pool.host} (${pool.pid})`],
      ["Python", (pool) => pool.python],
    ];
    const actions = world.allowed.some((verb) => verb in CONFIRM) ? [["", (pool) => h("span", { class: "row" }, fitting(world, pool))]] : [];
    return [...pools(world.news.status.pools, world.news.totals, [...more, ...actions]), h("p", { class: "faint" }, copied("pool", "list"))];
  },
};

// --- events ---

const events = {
  title: "Events",
  questions: ({ events: known }) => [["events", "events", String(known.at(-1)?.number ?? ""), SHOWN]],
  draw: (world) => {
    const kind = world.params.get("kind") ?? "";
    const kinds = [...new Set(world.events.map((event) => event.kind))].sort();
    const rows = world.events.filter((event) => !kind || event.kind === kind).slice(-200).reverse();
    const told = ({ number, ago, at, kind: _, ...fields }) =>
      h("span", null, Object.entries(fields).filter(([, value]) => value !== "" && value !== null).map(([name, value]) => h("span", { class: "field" }, h("span", { class: "faint" }, `${name} `), typeof value === "object" ? JSON.stringify(value) : value)));
    return [
      h("div", { class: "row filter" }, h("label", null, "Kind ", h("select", { onchange: (event) => world.go("events", { kind: event.target.value }) }, ["", ...kinds].map((each) => h("option", { value: each, selected: each === kind }, each || "all"))))),
      answered(world.answers.events, () => table("Events", [["event", (event) => event.kind], ["time", (event) => clock(event.at)], ["what", told]], rows, "No events.")),
      h("p", { class: "faint" }, copied("events", "--follow")),
    ];
  },
};

// --- mesh ---

const size = (part) => (part?.bytes === undefined ? undefined : bytes(part.bytes));

const mesh = {
  title: "Mesh",
  questions: () => [["limits", "limits", "", SHOWN], ["schedules", "schedules", "", SHOWN]],
  draw: ({ news, answers }) => {
    const { status, totals } = news;
    const { journal } = status;
    const columns = (names, kinds = {}) => names.map((name) => [name.replaceAll("_", " "), (row) => text(row[name] ?? "–") || "–", kinds[name]]);
    return [
      panel(
        "Hub",
        facts([
          ["accepted", count(status.accepted)],
          ["finished", count(status.finished)],
          ["payloads", bytes(status.bytes)],
          ["results kept", count(status.kept.outcomes)],
          ["their size", size(status.kept)],
          ["dead letters", count(status.dead.letters)],
          ["tasks without a program", count(status.orphans)],
          ["journal", journal ? `${journal.state}${journal.why ? ` (${journal.why})` : ""}` : "none"],
          ["changes to be written", journal ? count(journal.waiting) : undefined],
        ]),
      ),
      panel(`Clients (${count(totals.clients)})`, table("Clients", [["name", (each) => each.name], ["id", (each) => each.client], ["key", (each) => each.key || "–"], ["here", (each) => (each.present ? "yes" : "away")], ["tasks", (each) => count(each.tasks), "number"]], status.clients, "No client is here.")),
      panel("Limits", answered(answers.limits, (found) => table("Limits", columns(["limit", "rule", "set_by", "keys", "running", "started", "waiting"]), found, "No task has had a limit."))),
      panel("Schedules", answered(answers.schedules, (found) => table("Schedules", columns(found.length ? Object.keys(found[0]) : []), found, "There are no schedules."))),
      status.sinks.length ? panel("Sinks", table("Sinks", columns(["sink", "waiting", "consumers", "unacknowledged", "full"]), status.sinks, "")) : null,
    ];
  },
};

export const SCREENS = { "": overview, tasks, task: oneTask, functions, errors, pools: poolScreen, events, mesh };
