// The flow of tasks: accepted, finished and failed a second; pools that came and went are vertical lines.
/* global uPlot */
import { clock, h, rate, table } from "/static/page.js";

const NAMES = ["accepted", "finished", "failed"];
let plot = null;
let shown = "";

const colour = (name) => {
  const probe = h("i", { class: `colour-${name}` });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

function marks(chart, events) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.strokeStyle = colour("mark");
  ctx.setLineDash([4, 4]);
  for (const event of events) {
    const x = Math.round(chart.valToPos(event.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function options(width, events) {
  const text = colour("faint");
  const axis = { stroke: text, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width,
    height: 200,
    legend: { show: false },
    cursor: { points: { size: 6 } },
    scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map(clock), space: 80, size: 28 }, { ...axis, size: 48 }],
    series: [{}, ...NAMES.map((name, at) => ({ label: name, stroke: colour(name), width: 2, dash: at === 2 ? [6, 4] : undefined, points: { show: false } }))],
    hooks: { draw: [(chart) => marks(chart, events)] },
  };
}

// Draw the points into the element with the id `flow`; each point is [time, accepted, finished, failed].
export function draw(points, events, theme) {
  const place = document.getElementById("flow");
  if (!place || points.length < 2) return;
  const width = place.clientWidth;
  const kind = `${theme} ${width} ${events.length ? events.at(-1).number : 0}`;
  const data = [0, 1, 2, 3].map((column) => points.map((point) => point[column]));
  if (plot && place.contains(plot.root) && shown === kind) {
    plot.setData(data);
    return;
  }
  plot?.destroy();
  place.replaceChildren();
  plot = new uPlot(options(width, events), data, place);
  shown = kind;
}

export function flow(points, minutes, choose) {
  const last = points.at(-1);
  const legend = NAMES.map((name, at) => h("li", { class: `colour-${name}` }, h("span", null, name), h("b", null, last ? rate(last[at + 1]) : "–")));
  const choice = [5, 60].map((each) => h("button", { type: "button", "aria-pressed": String(each === minutes), onclick: () => choose(each) }, each === 5 ? "5 min" : "1 h"));
  const step = Math.max(1, Math.ceil(points.length / 12));
  const twin = points.filter((_, at) => at % step === 0);
  const columns = [["time", (point) => clock(point[0])], ...NAMES.map((name, at) => [name, (point) => rate(point[at + 1]), "number"])];
  return h(
    "div",
    null,
    h("div", { class: "row" }, h("ul", { class: "legend" }, legend), h("div", { class: "choice", role: "group", "aria-label": "Time shown" }, choice)),
    h("div", { id: "flow", class: "flow", "data-keep": true, role: "img", "aria-label": "Tasks accepted, finished and failed a second, over time" }),
    points.length < 2 ? h("p", { class: "none" }, "The first rates come in a few seconds.") : null,
    h("details", null, h("summary", null, "As a table"), table("Tasks a second", columns, twin, "no rates yet")),
  );
}
