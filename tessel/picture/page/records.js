// ---- What was measured, when, by whom, how widely it spreads, and the best of each workload -----------------------

const FIRST = 50; // workloads that are listed before one asks for all
const WAYS = { width: 720, row: 22, left: 250, right: 90 };
const DAYS = { width: 900, height: 120, left: 44, bottom: 22, top: 8, bar: 46 };
const chosen = { workload: null, all: false };

const best = (workload) => workload.ways[0] ?? null;
const spreadOf = (way) => (way.third_us - way.first_us) / 2 / way.latency_us;
const spreadText = (way) => way.samples > 1 ? `±${percent(spreadOf(way))}` : "one sample";
const dayOf = (seconds) => {
  const day = new Date(1000 * seconds);
  return seconds > 0 && !Number.isNaN(day.getTime()) ? day.toISOString().slice(0, 10) : "not known";
};
const wayName = (way) => `${way.backend} ${way.settings}`.trim();
const machineOf = (way) => data.environments[way.environment];
const madeBy = (way) => `${machineOf(way).device}, threads ${machineOf(way).threads}`;
const ORDERS = {
  "newest first": (workload) => workload.last,
  "slowest first": (workload) => best(workload)?.latency_us ?? 0,
  "widest spread first": (workload) => best(workload) ? spreadOf(best(workload)) : 0,
  "most measured first": (workload) => workload.measurements,
};

// The fastest way of another backend, and how much longer it takes.
function runnerUp(workload) {
  const first = best(workload), other = workload.ways.find((way) => way.backend !== first?.backend);
  return other ? `${other.backend}, ${(other.latency_us / first.latency_us).toFixed(2)} times` : "";
}

function isWanted(workload) {
  const words = byId("query").value.trim().toLowerCase(), [role, backend, machine] = ["role", "backend", "machine"].map((id) => byId(id).value);
  const said = () => [workload.operators, workload.inputs, workload.role, workload.device, ...workload.ways.map(wayName)].join(" ").toLowerCase();
  return (!role || workload.role === role) && (!machine || workload.device === machine)
    && (!backend || workload.ways.some((way) => way.backend === backend)) && (!words || said().includes(words));
}

function listWorkloads() {
  const wanted = data.workloads.filter(isWanted), by = ORDERS[byId("order").value];
  wanted.sort((one, other) => by(other) - by(one));
  const shown = chosen.all ? wanted : wanted.slice(0, FIRST);
  byId("found").textContent = `${wanted.length} of ${data.workloads.length} workloads${data.left_out ? `, ${data.left_out} older ones left out` : ""}.`;
  byId("all").hidden = shown.length === wanted.length; byId("all").textContent = `Show all ${wanted.length}`;
  const rows = shown.map((workload) => {
    const first = best(workload);
    const name = element("button", { type: "button", className: "name", textContent: workload.operators, onclick: () => choose(workload) });
    const figures = first ? [formatUs(first.latency_us), spreadText(first), first.backend, runnerUp(workload)] : ["failed", "", "", ""];
    return [name, ...figures, `${workload.measurements}`, dayOf(workload.last), workload.role, workload.device, workload.inputs];
  });
  const columns = ["workload", "best", "spread", "by backend", "next backend", "measured", "last", "role", "on", "inputs"];
  byId("workloads").replaceChildren(makeTable({ title: "Best by workload", columns, rows, texts: ["inputs"] }));
}

// The ways in which a workload was run: a box from the first to the third quartile, and a line at the median.
function choose(workload) {
  chosen.workload = workload;
  const rows = workload.ways.map((way) => [wayName(way), formatUs(way.latency_us), spreadText(way), `${way.samples}`, dayOf(way.at), madeBy(way), `${way.record}`]);
  const title = `Ways to run ${workload.operators}${workload.more ? `, the ${workload.ways.length} fastest of ${workload.ways.length + workload.more}` : ""}`;
  const failed = workload.failures ? [element("p", { textContent: `${workload.failures} further measurements failed.` })] : [];
  byId("ways").replaceChildren(element("h2", { textContent: title }), ...(workload.ways.length ? [scrollBox(waysPicture(workload), `${title}, as a picture`)] : []),
    makeTable({ title: `Workload ${workload.fingerprint}`, columns: ["way", "median", "spread", "samples", "when", "by", "record"], rows }), ...failed);
  byId("ways").scrollIntoView({ block: "nearest" });
}

function waysPicture({ ways }) {
  const { width, row, left, right } = WAYS, most = Math.max(...ways.map((way) => way.third_us)), x = (us) => left + us / most * (width - left - right);
  const drawn = svg("svg", { width, height: row * ways.length + 6, role: "img", "aria-label": "Median and quartiles of each way; the table below has them as numbers" });
  ways.forEach((way, k) => {
    const y = row * k + 4, name = wayName(way), color = data.colors[way.backend];
    drawn.append(svg("text", { x: 0, y: y + 12 }, name.length > 36 ? `${name.slice(0, 35)}…` : name),
      svg("rect", { x: x(way.first_us), y, width: Math.max(x(way.third_us) - x(way.first_us), 1), height: row - 7, fill: color, "fill-opacity": 0.5, stroke: color }),
      svg("path", { class: "axis", d: `M${x(way.latency_us)} ${y - 1}v${row - 5}` }), svg("text", { x: x(way.third_us) + 6, y: y + 12 }, formatUs(way.latency_us)));
  });
  return drawn;
}

// Measurements a day, or a month where there are many days, by backend from the axis up.
function drawDays() {
  const { height, left, bottom, top, bar } = DAYS, counts = new Map();
  const short = new Set(data.days.map(({ day }) => day)).size > 30 ? 7 : 10;
  for (const { day, backend, measurements } of data.days) {
    const name = day.slice(0, short);
    if (!counts.has(name)) counts.set(name, new Map());
    counts.get(name).set(backend, (counts.get(name).get(backend) ?? 0) + measurements);
  }
  const names = [...counts.keys()], totals = names.map((name) => [...counts.get(name).values()].reduce((a, b) => a + b, 0)), most = Math.max(...totals, 1);
  const width = left + 2 * bar * names.length + 10, scale = (height - bottom - top) / most;
  const label = `Measurements by day: ${names.map((name, k) => `${name} ${totals[k]}`).join(", ")}`;
  const drawn = svg("svg", { width, height, role: "img", "aria-label": label }, svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width}` }),
    svg("text", { x: left - 4, y: top + 8, "text-anchor": "end" }, `${most}`), svg("text", { x: left - 4, y: height - bottom, "text-anchor": "end" }, "0"));
  names.forEach((name, k) => {
    const x = left + 10 + 2 * bar * k;
    let y = height - bottom;
    for (const backend of Object.keys(data.colors)) {
      const tall = (counts.get(name).get(backend) ?? 0) * scale;
      if (tall) drawn.append(svg("rect", { x, y: y -= tall, width: bar, height: tall, fill: data.colors[backend] }, svg("title", {}, `${name}, ${backend}: ${counts.get(name).get(backend)}`)));
    }
    drawn.append(svg("text", { x, y: height - 6 }, name));
  });
  byId("days").replaceChildren(scrollBox(drawn, "Measurements by day"));
  byId("legend").replaceChildren(...Object.entries(data.colors).map(([backend, color]) => swatch(color, backend)));
}

function fillChoices() {
  const options = { role: data.workloads.map(({ role }) => role), backend: Object.keys(data.colors), machine: data.workloads.map(({ device }) => device) };
  for (const [id, values] of Object.entries(options))
    byId(id).append(element("option", { value: "", textContent: "all" }), ...[...new Set(values)].sort().map((value) => element("option", { value, textContent: value })));
  byId("order").append(...Object.keys(ORDERS).map((value) => element("option", { value, textContent: value })));
  for (const id of ["query", "role", "backend", "machine", "order"]) byId(id).addEventListener("input", () => { chosen.all = false; listWorkloads(); });
  byId("choice").addEventListener("submit", (event) => event.preventDefault());
  byId("all").addEventListener("click", () => { chosen.all = true; listWorkloads(); });
}

(function main() {
  byId("title").textContent = document.title = data.title;
  byId("summary").textContent = data.summary;
  byId("note").textContent = data.note;
  fillChoices(); drawDays(); listWorkloads();
  byId("tables").replaceChildren(...data.tables.map((table) => makeTable({ ...table, texts: ["versions"] })));
  document.body.dataset.ready = "yes";
})();
