// ---- Sub-graphs and their backends --------------------------------------------------------------------------------

const MAX_PARTS = 25; // sub-graphs listed before one asks for all
const partsOf = (block) => data.parts.filter((part) => part.blocks.includes(block));
const costOf = (part) => part.latency_us * part.occurrences;
const runnerUpOf = (part) => part.runner_up ? `${part.runner_up[0]}, ${formatUs(part.runner_up[1])}` : "none";
const sources = () => new Set(data.parts.map((part) => part.source)); // one for all stands above the table, not in each row
const isWanted = (part) => [...part.operators, part.layers, part.backend].some((each) => each.toLowerCase().includes(state.partsWanted));

function showParts() {
  if (!data.parts.length) return;
  const block = state.kept === null ? null : state.kept.block, own = block === null ? [] : partsOf(block);
  const all = own.length ? own : data.parts, wanted = state.partsWanted ? all.filter(isWanted) : all, listed = wanted.length ? wanted : all;
  const total = listed.reduce((sum, part) => sum + costOf(part), 0) || 1;
  byId("partition").hidden = false;
  byId("partition-of").textContent = own.length
    ? `Those that ${data.blocks[block].name} runs: ${own.length} of ${data.parts.length} distinct ones; Esc shows all.`
    : `${data.parts.length} distinct ones, each priced once. Choose a block to see those that it runs.`;
  const cost = new Map();
  for (const part of listed) cost.set(part.backend, (cost.get(part.backend) ?? 0) + costOf(part));
  const shares = [...cost].sort((a, b) => b[1] - a[1]);
  byId("shares").replaceChildren(...shares.map(([backend, us]) => {
    const bar = element("div", { title: `${backend} ${percent(us / total)}: ${formatUs(us)}` });
    bar.style.width = `${100 * us / total}%`; bar.style.background = data.backend_colors[backend];
    return bar;
  }));
  byId("shares-text").replaceChildren(...shares.map(([backend, us]) => swatch(data.backend_colors[backend], `${backend} ${percent(us / total)}`)));
  const rows = [...listed].sort((a, b) => costOf(b) - costOf(a)), few = state.allParts ? rows : rows.slice(0, MAX_PARTS);
  const table = makeTable({
    title: `Sub-graphs, most time first${sources().size === 1 ? `, all ${data.parts[0].source}` : ""}`, textColumns: 3, id: "parts",
    columns: ["operators", "layer", "tensors", "backend", "latency", "from", "runs", "share of time", "alternative"],
    rows: few.map((part) => partCells(part, total)),
  });
  byId("parts-box").replaceChildren(table);
  const more = byId("all-parts");
  more.hidden = few.length === rows.length; more.textContent = `Show all ${rows.length}`;
  showGraphOf(block);
}

function partCells(part, total) {
  const share = costOf(part) / total, bar = element("i");
  bar.style.width = `${Math.max(Math.round(60 * share), 1)}px`; bar.style.background = data.backend_colors[part.backend];
  return [part.operators.join(", "), part.layers, part.tensors, swatch(data.backend_colors[part.backend], part.backend), formatUs(part.latency_us),
    sources().size === 1 ? "" : part.source, `${part.occurrences}`, element("span", { className: "share" }, bar, percent(share)), runnerUpOf(part)];
}

// ---- The partition as a graph -------------------------------------------------------------------------------------
// Sub-graphs are boxes around their operators, each below those that it reads. Layers that repeat with the same
// sub-graphs on the same backends are drawn once and marked with how often they run.

const BOX = { width: 196, gapX: 22, gapY: 26, line: 15, head: 22, pad: 14, maxOperators: 5 };
let graphFunction = null, graphFolded = true;

// "h.3.attn.proj" is the fourth of the layers "h": { prefix: "h", index: 3 }.
function repeatOf(layer) {
  const names = layer.split("."), at = names.findIndex((name) => /^\d+$/.test(name));
  return at < 0 ? null : { prefix: names.slice(0, at).join("."), index: Number(names[at]) };
}

// Groups of a function's nodes that belong to one instance of a repeated layer, in order.
function groupsOf(nodes) {
  const groups = new Map();
  for (const node of nodes) {
    const repeat = repeatOf(layerOf(node));
    if (!repeat) continue;
    const key = `${repeat.prefix}#${repeat.index}`;
    if (!groups.has(key)) groups.set(key, { ...repeat, nodes: [] });
    groups.get(key).nodes.push(node);
  }
  for (const group of groups.values()) {
    const place = new Map(group.nodes.map((node, k) => [node.number, k]));
    group.signature = JSON.stringify(group.nodes.map((node) => [node.part, node.inputs.filter((from) => place.has(from)).map((from) => place.get(from))]));
  }
  return [...groups.values()].sort((a, b) => a.prefix < b.prefix ? -1 : a.prefix > b.prefix ? 1 : a.index - b.index);
}

// Runs of equal neighbours become their first: { shown: nodes, edges, frames: [{ label, numbers }] }.
function foldGraph(nodes, isFolded) {
  const stands = new Map(nodes.map((node) => [node.number, node.number])), frames = [];
  let last = null;
  for (const group of groupsOf(nodes)) {
    const continues = isFolded && last && last.prefix === group.prefix && last.end + 1 === group.index && last.signature === group.signature;
    if (continues) { last.end = group.index; group.nodes.forEach((node, k) => stands.set(node.number, last.nodes[k].number)); }
    else frames.push(last = { ...group, end: group.index });
  }
  const kept = nodes.filter((node) => stands.get(node.number) === node.number), frameOf = new Map();
  frames.forEach((frame, k) => frame.nodes.forEach((node) => frameOf.set(node.number, k)));
  const edges = new Map();
  for (const node of nodes) for (const from of node.inputs) {
    const [source, target] = [stands.get(from), stands.get(node.number)];
    const isFoldedAway = stands.get(from) !== from && stands.get(node.number) !== node.number;
    const isBack = source >= target; // from one of the folded layers to the next
    if (source !== undefined && !isFoldedAway && !isBack) edges.set(`${source}>${target}`, [source, target]);
  }
  const named = frames.map((frame) => ({ label: nameOfFrame(frame), numbers: frame.nodes.map(({ number }) => number), times: frame.end - frame.index + 1 }));
  return { shown: kept, edges: [...edges.values()], frames: named };
}

const nameOfFrame = ({ prefix, index, end }) => {
  const path = (number) => prefix ? `${prefix}.${number}` : `${number}`;
  return end === index ? path(index) : `${path(index)} … ${path(end)} × ${end - index + 1}`;
};

// Rows by depth; frames are kept apart by giving each row its members side by side.
function placeGraph({ shown: nodes, edges }) {
  const depth = new Map(nodes.map(({ number }) => [number, 0]));
  for (const [source, target] of [...edges].sort((a, b) => a[1] - b[1] || a[0] - b[0])) depth.set(target, Math.max(depth.get(target), depth.get(source) + 1));
  const rows = [];
  for (const node of nodes) (rows[depth.get(node.number)] ??= []).push(node);
  const places = new Map();
  let y = BOX.pad + 16;
  for (const row of rows) {
    const height = Math.max(...row.map(heightOf));
    row.forEach((node, k) => places.set(node.number, { x: BOX.pad + k * (BOX.width + BOX.gapX), y, width: BOX.width, height: heightOf(node) }));
    y += height + BOX.gapY;
  }
  return { places, width: 2 * BOX.pad + Math.max(0, ...rows.map((row) => row.length)) * (BOX.width + BOX.gapX), height: y };
}

const layerOf = (node) => node.layers.find(Boolean) ?? "";
const linesOf = (node) => {
  const { operators } = data.parts[node.part];
  return operators.length > BOX.maxOperators ? [...operators.slice(0, BOX.maxOperators - 1), `… ${operators.length - BOX.maxOperators + 1} more`] : operators;
};
const heightOf = (node) => BOX.head + (linesOf(node).length + (layerOf(node) ? 1 : 0)) * BOX.line + 8;

function showGraphOf(block) {
  if (!data.graph.length) return;
  const own = block === null ? null : data.functions.findIndex((each) => each.block === block);
  showGraph(own !== null && own >= 0 ? own : graphFunction ?? 0);
}

function showGraph(number) {
  graphFunction = number;
  const picker = byId("graph-function"), box = byId("graph");
  if (!picker.options.length) data.functions.forEach(({ name }, k) => picker.append(element("option", { value: k, textContent: name })));
  picker.value = number;
  const nodes = data.graph.map((node, k) => ({ ...node, number: k })).filter((node) => node.function === number);
  const folded = foldGraph(nodes, graphFolded), { places, width, height } = placeGraph(folded);
  const lines = svg("svg", { width, height, "aria-hidden": "true" }), marks = [];
  for (const frame of folded.frames) if (frame.times > 1 || !graphFolded) marks.push(frameMarks(frame, places));
  lines.append(...marks.map(([outline]) => outline));
  for (const [source, target] of folded.edges) lines.append(svg("path", { d: linkOf(places.get(source), places.get(target)), class: "link" }));
  const boxes = folded.shown.map((node) => nodeBox(node, places.get(node.number)));
  const field = element("div", { className: "field" }, lines, ...marks.map(([, label]) => label), ...boxes);
  field.style.width = `${width}px`; field.style.height = `${height}px`;
  box.replaceChildren(scrollBox(field, `Sub-graphs of ${data.functions[number].name}`));
  byId("graph-text").textContent = `${nodes.length} sub-graphs${folded.shown.length < nodes.length ? `, ${folded.shown.length} drawn: repeated layers are folded` : ""}.`;
  byId("graph-box").hidden = false; byId("graph-node").textContent = "Choose a sub-graph to see its layers, shapes and alternatives.";
}

function frameMarks({ label, numbers }, places) {
  const inside = numbers.map((number) => places.get(number)).filter(Boolean);
  const x = Math.min(...inside.map((each) => each.x)) - 8, y = Math.min(...inside.map((each) => each.y)) - 18;
  const right = Math.max(...inside.map((each) => each.x + each.width)) + 16, bottom = Math.max(...inside.map((each) => each.y + each.height)) + 6;
  const name = element("span", { className: "frame-label", textContent: label }); // links do not run through its letters
  name.style.left = `${x + 8}px`; name.style.top = `${y + 1}px`;
  return [svg("rect", { x, y, width: right - x, height: bottom - y, rx: 8, class: "frame" }), name];
}

// Straight down to the next row; past the boxes' right side where it skips rows, which would hide it.
function linkOf(source, target) {
  const [x1, y1, x2, y2] = [source.x + source.width / 2, source.y + source.height, target.x + target.width / 2, target.y];
  if (y2 - y1 <= BOX.gapY + BOX.maxOperators * BOX.line) return `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`;
  const aside = Math.max(source.x + source.width, target.x + target.width) + BOX.gapX / 2, half = BOX.gapY / 2;
  return `M${x1 + 40} ${y1}C${x1 + 40} ${y1 + half} ${aside} ${y1} ${aside} ${y1 + half + 6}V${y2 - half - 6}C${aside} ${y2} ${x2 + 40} ${y2 - half} ${x2 + 40} ${y2}`;
}

function nodeBox(node, place) {
  const part = data.parts[node.part];
  const box = element("button", { className: "node", onclick: () => showNode(node) },
    element("span", { className: "head" }, swatch(data.backend_colors[part.backend], part.backend), formatUs(part.latency_us)),
    ...(layerOf(node) ? [element("span", { className: "layer", textContent: layerOf(node), title: layerOf(node) })] : []),
    ...linesOf(node).map((textContent) => element("span", { className: "operator", textContent })));
  for (const side of ["x", "y", "width", "height"]) box.style[{ x: "left", y: "top" }[side] ?? side] = `${place[side]}px`;
  box.style.borderLeftColor = data.backend_colors[part.backend];
  return box;
}

function showNode(node) {
  const part = data.parts[node.part], rows = part.operators.map((operator, k) => [operator, node.layers[k] || "-"]);
  const facts = `${part.backend}, ${formatUs(part.latency_us)} (${part.source}); alternative: ${runnerUpOf(part)}; tensors ${part.tensors || "not recorded"}; runs ${part.occurrences} times in a micro-batch`;
  byId("graph-node").replaceChildren(element("p", { textContent: facts }), makeTable({ title: "Its operators", columns: ["operator", "layer"], rows, textColumns: 2 }));
}
