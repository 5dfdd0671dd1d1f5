// ---- What one does ------------------------------------------------------------------------------------------------

const PLAY_S = 20; // seconds in which the cursor plays what is visible
const STILL_MS = 700; // from moment to moment, where motion is unwelcome
const isStill = matchMedia("(prefers-reduced-motion: reduce)");

const say = (text) => { byId("said").textContent = text; };

function setCursor(time) {
  state.cursor = Math.max(0, Math.min(time, longest()));
  byId("cursor").value = Math.round(1000 * state.cursor / longest());
  const span = view.to - view.from;
  if (state.cursor < view.from) setView(state.cursor, state.cursor + span);
  else if (state.cursor > view.to) setView(state.cursor - span, state.cursor);
  showMemory(); redraw();
}

function step(forward) {
  const times = moments(current());
  const k = firstWhere(times.length, (at) => forward ? times[at] > state.cursor : times[at] >= state.cursor) - (forward ? 0 : 1);
  if (k >= 0 && k < times.length) setCursor(times[k]);
}

function play(on) {
  state.playing = on;
  byId("play").setAttribute("aria-pressed", on); byId("play").textContent = on ? "Pause" : "Play";
  if (!on) return;
  if (state.cursor >= current().makespan) setCursor(0);
  let last = null;
  const frame = (now) => {
    if (!state.playing) return;
    if (last !== null) setCursor(state.cursor + (now - last) / 1000 * (view.to - view.from) / PLAY_S);
    last = now;
    if (state.cursor >= current().makespan) play(false); else requestAnimationFrame(frame);
  };
  const leap = () => {
    if (!state.playing) return;
    step(true);
    if (state.cursor >= current().makespan) play(false); else setTimeout(leap, STILL_MS);
  };
  if (isStill.matches) leap(); else requestAnimationFrame(frame);
}

function setView(from, to) {
  const limit = longest() * 1.02, span = Math.max(Math.min(to - from, limit), 2);
  view.from = Math.max(0, Math.min(from, limit - span)); view.to = view.from + span;
  redraw(); listSoon();
}

let listing = null;
function listSoon() {
  if (listing === null && byId("listed").open) listing = setTimeout(() => { listing = null; listBlocks(); }, 200);
}

const showAll = () => setView(0, longest() * 1.02);

function zoom(factor, center = (view.from + view.to) / 2) {
  setView(center - (center - view.from) * factor, center + (view.to - center) * factor);
}

const tabs = () => [...document.querySelectorAll("#tabs button")];

function select(number) {
  state.schedule = number; state.hover = null;
  if (state.beside === number) state.beside = null;
  tabs().forEach((tab) => {
    const isChosen = Number(tab.dataset.schedule) === number;
    tab.setAttribute("aria-selected", isChosen); tab.tabIndex = isChosen ? 0 : -1;
    if (isChosen) byId("timeline").setAttribute("aria-labelledby", tab.id);
  });
  if (!tabs().some((tab) => tab.tabIndex === 0)) tabs()[0].tabIndex = 0; // one of those that sliders choose
  showShown();
}

function compareWith(number) {
  state.beside = number === state.schedule ? null : number;
  showShown();
  setView(view.from, view.to);
}

function showShown() {
  const picker = byId("beside");
  picker.value = state.beside ?? "";
  for (const option of picker.options) option.disabled = option.value === `${state.schedule}`;
  byId("marking").disabled = !other();
  byId("summary").textContent = `${summaryOf(current())}.${besideText()}`;
  showReadout(); showFacts(); showParts(); showArea(); showFrontier(); buildMemory(); listBlocks(); redraw();
}

function keep(chosen) {
  state.kept = chosen; state.allParts = false;
  const schedule = current(), i = chosen === null ? -1 : find(schedule, chosen);
  if (i >= 0) {
    const from = schedule.start[i], to = endOf(schedule, i), span = view.to - view.from;
    if (from < view.from || to > view.to) setView((from + to - span) / 2, (from + to + span) / 2);
    setCursor(from);
  }
  showFacts(); showParts(); redraw();
}

function follow(forward) {
  if (state.kept === null) return keepAtCursor();
  const schedule = current(), i = find(schedule, state.kept), found = i < 0 ? [] : neighbours(schedule, i, forward);
  if (!found.length) return;
  // What it waited for last, or what waits for it first: the tight one.
  found.sort((a, b) => forward ? schedule.start[a] - schedule.start[b] : endOf(schedule, b) - endOf(schedule, a));
  keep(identify(schedule, found[0]));
}

// The block that a device runs at a time, or else runs next, or else ran last.
function runningOn(schedule, device, time) {
  const row = schedule.rows[device];
  return row.length ? row[Math.min(firstVisible(schedule, row, time), row.length - 1)] : null;
}

function keepAtCursor() {
  const schedule = current();
  const running = schedule.rows.map((_, device) => runningOn(schedule, device, state.cursor)).filter((i) => i !== null);
  const now = running.find((i) => schedule.start[i] <= state.cursor && endOf(schedule, i) > state.cursor) ?? running[0];
  keep(state.hover ?? (now === undefined ? null : identify(schedule, now)));
}

function keepBeside(shift) {
  const schedule = current(), i = state.kept === null ? -1 : find(schedule, state.kept);
  if (i < 0) return keepAtCursor();
  const row = schedule.rows[blockOf(schedule, i).devices[0]], found = row[row.indexOf(i) + shift];
  if (found !== undefined) keep(identify(schedule, found));
}

function keepOnDevice(shift) {
  const schedule = current(), i = state.kept === null ? -1 : find(schedule, state.kept);
  if (i < 0) return keepAtCursor();
  const devices = blockOf(schedule, i).devices, device = (shift > 0 ? Math.max(...devices) : Math.min(...devices)) + shift;
  const found = device >= 0 && device < data.devices ? runningOn(schedule, device, schedule.start[i]) : null;
  if (found !== null) keep(identify(schedule, found));
}

function nextDifference() {
  const beside = other(), schedule = current();
  if (!beside) return;
  const differs = differences(schedule, beside), now = state.kept === null ? -1 : find(schedule, state.kept);
  for (let k = 1; k <= schedule.count; k++) {
    const i = (now + k) % schedule.count;
    if (differs[i]) { keep(identify(schedule, i)); return; }
  }
}

function toggle(name) {
  state[name] = !state[name];
  byId(name).setAttribute("aria-pressed", state[name]);
  redraw();
}

// ---- Mouse and keyboard -------------------------------------------------------------------------------------------

function dragged(drag, event) {
  const { pane, device } = pointAt(Math.max(event.offsetX, leftEdge()), event.offsetY), last = pane === drag.pane && device !== null ? device : drag.last;
  drag.last = last;
  const [from, to] = [drag.time, toTime(event.offsetX)].sort((a, b) => a - b);
  return { from: Math.max(from, 0), to, first: Math.min(drag.device, last), last: Math.max(drag.device, last) };
}

function wirePointer() {
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    const { pane, device } = pointAt(event.offsetX, event.offsetY), isArea = (event.shiftKey || state.selecting) && device !== null;
    drag = { x: event.offsetX, from: view.from, to: view.to, moved: false, isArea, pane, device, last: device, time: toTime(event.offsetX) };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) {
      const { block } = pointAt(event.offsetX, event.offsetY);
      if (!isSame(block, state.hover)) { state.hover = block; showReadout(); redraw(); }
      return;
    }
    if (Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
    if (!drag.moved) return;
    const shift = (event.offsetX - drag.x) / (canvas.clientWidth - leftEdge()) * (drag.to - drag.from);
    if (drag.isArea) setArea(dragged(drag, event)); else setView(drag.from - shift, drag.to - shift);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      keep(pointAt(event.offsetX, event.offsetY).block);
      if (event.offsetX > leftEdge()) setCursor(toTime(event.offsetX));
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { state.hover = null; showReadout(); redraw(); });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const span = view.to - view.from, aside = event.shiftKey ? event.deltaY : event.deltaX;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) setView(view.from + aside / 1000 * span, view.to + aside / 1000 * span);
    else zoom(Math.exp(event.deltaY * 0.0015), toTime(Math.max(event.offsetX, leftEdge())));
  }, { passive: false });
}

function actionsOf() {
  return {
    "zoom-in": () => zoom(0.6), "zoom-out": () => zoom(1 / 0.6), fit: showAll, back: () => step(false), step: () => step(true),
    play: () => play(!state.playing), critical: () => toggle("critical"), marking: () => toggle("marking"), selecting: () => toggle("selecting"),
    "next-difference": nextDifference, "clear-area": () => setArea(null), "all-parts": () => { state.allParts = true; showParts(); },
  };
}

function wireKeys(actions) {
  const pan = (share) => { const shift = share * (view.to - view.from); setView(view.from + shift, view.to + shift); };
  const turn = (shift) => {
    const order = tabs().map((tab) => Number(tab.dataset.schedule)), at = Math.max(order.indexOf(state.schedule), 0);
    select(order[(at + shift + order.length) % order.length]);
  };
  const keys = {
    ArrowLeft: () => pan(-1 / 8), ArrowRight: () => pan(1 / 8), ArrowUp: () => keepOnDevice(-1), ArrowDown: () => keepOnDevice(1),
    "+": actions["zoom-in"], "=": actions["zoom-in"], "-": actions["zoom-out"], "0": actions.fit,
    ",": actions.back, ".": actions.step, Home: () => setCursor(0), End: () => setCursor(current().makespan),
    " ": actions.play, Enter: keepAtCursor, p: () => follow(false), n: () => follow(true), c: actions.critical, x: nextDifference, m: markArea,
    "/": () => byId("query").focus(),
    "[": () => turn(-1), "]": () => turn(1), Escape: () => { state.mark = null; setArea(null); keep(null); }, "?": () => { byId("help").open = !byId("help").open; },
  };
  const shifted = { ArrowLeft: () => keepBeside(-1), ArrowRight: () => keepBeside(1) };
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
    if (["BUTTON", "SUMMARY"].includes(event.target.tagName) && [" ", "Enter"].includes(event.key)) return;
    if (event.target.closest?.(".scroll") && /^(Arrow|Home|End| )/.test(event.key)) return; // scrolls its table
    if (event.key.length === 1 && !byId("single-keys").checked && document.activeElement !== canvas) return;
    const number = Number(event.key) - 1, action = (event.shiftKey && shifted[event.key]) || keys[event.key];
    if (event.key >= "1" && event.key <= "9" && number < tabs().length) select(Number(tabs()[number].dataset.schedule));
    else if (action) { event.preventDefault(); action(); }
  });
}

// Tabs are one stop of the Tab key; arrows move among them, as the ARIA Authoring Practices describe.
function wireTabs() {
  byId("tabs").addEventListener("keydown", (event) => {
    const all = tabs(), at = all.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    const tab = all[(to + all.length) % all.length];
    select(Number(tab.dataset.schedule)); tab.focus();
  });
}

function wire() {
  const actions = actionsOf();
  wirePointer(); wireKeys(actions); wireTabs();
  document.querySelectorAll("[data-action]").forEach((button) => button.addEventListener("click", actions[button.dataset.action]));
  byId("cursor").addEventListener("input", (event) => setCursor(event.target.value / 1000 * longest()));
  byId("beside").addEventListener("change", (event) => compareWith(event.target.value === "" ? null : Number(event.target.value)));
  byId("query").addEventListener("input", (event) => search(event.target.value));
  byId("query").addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { event.target.value = ""; search(""); canvas.focus(); }
  });
  byId("listed").addEventListener("toggle", listBlocks);
  byId("graph-function").addEventListener("change", (event) => showGraph(Number(event.target.value)));
  byId("graph-folded").addEventListener("change", (event) => { graphFolded = event.target.checked; showGraph(graphFunction); });
  const repaint = () => { theme = null; redraw(); };
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", repaint);
  // Paper is white, also where the screen is dark.
  window.addEventListener("beforeprint", () => { document.documentElement.classList.add("printing"); theme = null; draw(); });
  window.addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); repaint(); });
  new ResizeObserver(redraw).observe(byId("timeline"));
  window.addEventListener("resize", redraw);
}

// ---- The beginning ------------------------------------------------------------------------------------------------

function buildTabs() {
  const shownFirst = schedules.map((schedule, number) => [schedule, number]).filter(([{ name }]) => name !== null);
  byId("tabs").replaceChildren(...shownFirst.map(([schedule, number]) => {
    const button = element("button", { id: `tab-${number}`, onclick: () => select(number) }, schedule.title, " ", element("small", { textContent: formatTime(schedule.makespan) }));
    button.setAttribute("role", "tab"); button.setAttribute("aria-controls", "timeline"); button.dataset.schedule = number;
    return button;
  }));
  byId("beside").append(element("option", { value: "", textContent: "nothing" }),
    ...shownFirst.map(([schedule, value]) => element("option", { value, textContent: `${schedule.title}, ${formatTime(schedule.makespan)}` })));
}

function buildLegend() {
  const kinds = new Map(data.styles.filter((_, k) => data.blocks[k].span).map(({ label, color }) => [label, color]));
  const chunks = data.chunks.map((white, chunk) => [`rgb(${lighter(data.chunk_color, white)})`, `chunk ${chunk}`]);
  const keys = [...[...kinds].map(([label, color]) => [color, label]), ...chunks, ["var(--idle)", "idle"]];
  byId("legend").replaceChildren(...keys.map(([color, label]) => swatch(color, label)));
}

(async function main() {
  byId("title").textContent = document.title = data.title;
  schedules = await Promise.all(data.schedules.map(loadSchedule));
  buildTabs(); buildLegend();
  byId("tables").replaceChildren(...data.tables.map((table) => makeTable({ ...table, textColumns: 1 })));
  wire();
  showAll();
  const base = schedules.findIndex((each, number) => number && each.name === "1f1b");
  state.beside = base > 0 ? base : schedules.length > 1 && schedules[1].name !== null ? 1 : null;
  select(0); showAll();
  buildExplorer();
  setCursor(peakMoment(current())[0]); // where memory is tightest, which no later moment exceeds
  draw();
  performance.mark("ready");
  document.body.dataset.ready = "yes";
})();
