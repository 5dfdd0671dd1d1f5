// ---- Schedules searched beforehand --------------------------------------------------------------------------------
// A schedule for each memory limit and number of micro-batches; sliders and the frontier's points choose among them.

const FRONTIER = { width: 420, height: 190, left: 52, right: 46, top: 12, bottom: 34 };
const limitsKnown = () => [...new Set(data.variants.map(({ memory }) => memory))].sort((a, b) => a - b);
const sizesKnown = () => [...new Set(data.variants.map(({ micro_batches }) => micro_batches))].sort((a, b) => a - b);
const chosenVariant = () => data.variants.find(({ schedule }) => schedule === state.schedule) ?? null;

// Of those for so many micro-batches, the fastest that keeps the limit: what is right for less memory is right for more.
function variantFor(memory, microBatches) {
  const fitting = data.variants.filter((each) => each.micro_batches === microBatches && each.memory <= memory);
  return fitting.reduce((best, each) => best === null || each.makespan < best.makespan ? each : best, null);
}

function chooseVariant() {
  const memory = limitsKnown()[byId("limit-slider").valueAsNumber], microBatches = sizesKnown()[byId("size-slider").valueAsNumber];
  const variant = variantFor(memory, microBatches);
  describeVariant(variant, memory, microBatches);
  if (variant) { select(variant.schedule); showAll(); }
}

// What the sliders stand at, and what was found there.
function describeVariant(variant, memory, microBatches) {
  const proof = !variant ? "" : variant.optimal ? "proven optimal" : `not proven optimal${variant.lower_bound ? `, bound ${formatTime(variant.lower_bound)}` : ""}`;
  byId("variant").textContent = variant
    ? `${formatTime(variant.makespan)} (${proof}), ${rateOf(variant.makespan / microBatches)} a micro-batch.`
    : `No schedule of ${microBatches} micro-batches was found within ${formatMemory(memory)}.`;
  byId("limit-value").textContent = formatMemory(memory); byId("size-value").textContent = `${microBatches}`;
  byId("limit-slider").setAttribute("aria-valuetext", formatMemory(memory));
  byId("size-slider").setAttribute("aria-valuetext", `${microBatches} micro-batches`);
}

function buildExplorer() {
  if (!data.variants.length) return;
  byId("explore").hidden = false; byId("limit-rest").textContent = besideWeights();
  const [limit, size] = [byId("limit-slider"), byId("size-slider")];
  limit.max = limitsKnown().length - 1; size.max = sizesKnown().length - 1;
  size.closest("label").hidden = sizesKnown().length < 2;
  limit.addEventListener("input", chooseVariant); size.addEventListener("input", chooseVariant);
  const first = data.variants[data.variants.length - 1];
  limit.value = limitsKnown().indexOf(first.memory); size.value = sizesKnown().indexOf(first.micro_batches);
  describeVariant(first, first.memory, first.micro_batches);
  showFrontier();
}

const besideWeights = () => STATICS.some((bytes) => bytes) ? ", beside weights" : "";

const rateOf = (steps) => data.step_ms === null ? `${+steps.toFixed(2)} steps` : formatTime(steps);

function showFrontier() {
  if (!data.variants.length) return;
  const size = sizesKnown()[byId("size-slider").valueAsNumber], { width, height, left, right, top, bottom } = FRONTIER;
  const points = data.variants.filter(({ micro_batches }) => micro_batches === size).sort((a, b) => a.memory - b.memory);
  const limits = limitsKnown(), low = limits[0], high = limits[limits.length - 1], most = 1.08 * Math.max(...points.map(({ makespan }) => makespan), 1);
  const x = (memory) => left + (high > low ? (memory - low) / (high - low) : 0.5) * (width - left - right), y = (steps) => height - bottom - steps / most * (height - top - bottom);
  const path = points.map((point, k) => `${k ? `H${x(point.memory)}V` : `M${x(point.memory)} `}${y(point.makespan)}`).join("");
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Makespan against the memory limit, ${size} micro-batches` },
    svg("path", { d: `M${left} ${top}V${height - bottom}H${width - right}`, class: "axis" }), svg("path", { d: `${path}${points.length ? `H${width - right}` : ""}`, class: "curve" }),
    svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, `memory limit of a device${besideWeights()}`),
    svg("text", { x: -(height - bottom) / 2, y: 12, transform: "rotate(-90)", "text-anchor": "middle" }, `makespan (${data.step_ms === null ? "steps" : "ms"})`));
  const step = Math.ceil(limits.length / 8);
  limits.forEach((memory, k) => { if (k % step === 0) drawn.append(svg("text", { x: x(memory), y: height - bottom + 14, "text-anchor": "middle" }, formatMemory(memory))); });
  for (const point of points) drawn.append(frontierPoint(point, x(point.memory), y(point.makespan)));
  byId("frontier").replaceChildren(drawn);
}

// Whether it is the schedule that the first tab shows.
const isSearched = ({ schedule }) => {
  const [one, other] = [schedules[0], schedules[schedule]];
  return one.count === other.count && one.start.every((start, i) => start === other.start[i] && one.block[i] === other.block[i] && one.batch[i] === other.batch[i]);
};

function frontierPoint(point, x, y) {
  const value = data.step_ms === null ? `${point.makespan}` : formatMs(point.makespan * data.step_ms), isChosen = point.schedule === state.schedule || (state.schedule === 0 && isSearched(point));
  const mark = svg("g", { class: `point${point.optimal ? "" : " open"}${isChosen ? " chosen" : ""}`, role: "button", tabindex: "0", "aria-pressed": isChosen,
    "aria-label": `limit ${formatMemory(point.memory)}: ${data.step_ms === null ? formatTime(point.makespan) : `${value} ms`}, ${point.optimal ? "proven optimal" : "not proven"}` },
    svg("circle", { cx: x, cy: y, r: 12, class: "target" }), svg("circle", { cx: x, cy: y, r: 5 }), svg("text", { x: x + 11, y: y - 9 }, value));
  const choose = () => {
    byId("limit-slider").value = limitsKnown().indexOf(point.memory);
    chooseVariant();
    byId("frontier").querySelector(".chosen")?.focus();
  };
  mark.addEventListener("click", choose);
  mark.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); choose(); } });
  return mark;
}
