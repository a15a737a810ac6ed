"use strict";
const $ = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const grouped = (n) => n.toLocaleString("en-US");
const share = (x) => {
  if (x >= 0.9995) return "100 %";
  if (x >= 0.0001) return (100 * x).toFixed(x >= 0.1 ? 1 : 2) + " %";
  return x === 0 ? "0 %" : "< 0.01 %";
};
const LOCAL = 64;    // positions that count as near
const WINDOW = 600;  // tokens that are shown at once: a long text as elements of a page would be slow
const MARK = (id) => `⟨${id}⟩`;

// What is shown: the text, the looks that are known, the token that was chosen, and the cursor in the strip.
let tokens = [], words = [], looks = new Map(), model = "";
let chosen = -1, look = null, layer = -1, first = 0, range = [0, 1], cursor = null, columns = [], mean = null;
const data = $("data").textContent.trim() ? JSON.parse($("data").textContent) : null;

const kind = (at) => at === 0 ? "sink" : chosen - at < LOCAL ? "local" : "far";
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
// 0 .. 1 for a weight: log scale over three decades, and something for what is below them.
const height = (weight) => Math.max(0.06, Math.min(1, 1 + Math.log10(Math.max(weight, 1e-9)) / 3));
const word = (at) => words[at] || MARK(tokens[at]);
const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥");

function context(at, before, behind) {
  const part = (from, to) => visible(words.slice(Math.max(from, 0), to).join(""));
  let left = part(at - 40, at), right = part(at + 1, Math.min(at + 41, words.length));
  if (left.length > before) left = "…" + left.slice(-before);
  if (right.length > behind) right = right.slice(0, behind) + "…";
  return [left, make("mark", {textContent: visible(word(at))}), right];
}

// ---- tokens

function setText(ids, strings) {
  tokens = ids; words = strings; looks = new Map();
  chosen = -1; look = null; cursor = null; first = 0;
  $("text").hidden = ids.length === 0;
  $("look").hidden = true;
  $("goto").max = ids.length - 1;
}

// The window stays where it is while it has the position and some context of it.
function showWindow(at) {
  const last = Math.max(0, tokens.length - WINDOW), margin = 40;
  const shown = $("tokens").childElementCount > 0 && $("tokens").of === tokens;
  const inside = at >= first + (first > 0 ? margin : 0) && at < first + WINDOW - (first < last ? margin : 0);
  if (!shown || !inside) {
    first = Math.max(0, Math.min(last, at - Math.round(0.7 * WINDOW)));
    fillWindow();
  }
  tint();
}
function moveWindow(step) {
  first = Math.max(0, Math.min(tokens.length - WINDOW, first + step));
  fillWindow(); tint();
}

function fillWindow() {
  const end = Math.min(first + WINDOW, tokens.length), parts = [];
  for (let i = first; i < end; ++i) {
    const text = words[i] ? words[i].replace(/\n/g, "↵\n").replace(/\t/g, "⇥") : MARK(tokens[i]);
    const span = make("span", {id: "t" + i, textContent: text});
    span.setAttribute("role", "option");
    span.classList.toggle("mark", !words[i]);
    if (data && !looks.has(i)) { span.classList.add("off"); span.setAttribute("aria-disabled", "true"); }
    parts.push(span);
  }
  $("tokens").replaceChildren(...parts);
  $("tokens").of = tokens;
  $("tokens").scrollTop = 0;
  $("window").textContent = tokens.length <= WINDOW ? `${grouped(tokens.length)} tokens`
    : `${grouped(first)} – ${grouped(end - 1)} of ${grouped(tokens.length)} tokens`;
  $("earlier").disabled = first === 0;
  $("later").disabled = end === tokens.length;
  $("earlier").hidden = $("later").hidden = tokens.length <= WINDOW;
}

// The tokens' background: how much of the attention they got.
function tint() {
  for (const span of $("tokens").children) {
    const at = Number(span.id.slice(1)), weight = look ? weightAt(at) : undefined;
    span.style.background = weight === undefined ? ""
      : `color-mix(in srgb, var(--${kind(at)}) ${(8 + 62 * height(weight) ** 2).toFixed(0)}%, transparent)`;
    span.classList.toggle("chosen", at === chosen);
    span.classList.toggle("cursor", cursor !== null && at === cursor);
    span.setAttribute("aria-selected", String(at === chosen));
    span.title = `position ${grouped(at)}` + (weight === undefined ? "" : `, weight ${share(weight)}`);
  }
  if (chosen >= 0) $("tokens").setAttribute("aria-activedescendant", "t" + chosen);
}

function scrollTo(at) {
  const span = $("t" + at), box = $("tokens");
  if (!span) return;
  const top = span.offsetTop - box.clientTop;
  const seen = top >= box.scrollTop && top + span.offsetHeight <= box.scrollTop + box.clientHeight;
  if (!seen) box.scrollTop = top - box.clientHeight / 2;
}

let asking = null, timer = 0;
async function choose(at, wait = 0) {
  if (!(at >= 0 && at < tokens.length)) return;
  if (data && !looks.has(at)) {
    $("look-error").textContent = `Position ${at} was not looked at: gsa inspect-text --positions ${at}-${at} does`;
    return;
  }
  chosen = at; cursor = null;
  $("goto").value = at;
  $("look-error").textContent = "";
  showWindow(at); scrollTo(at);
  clearTimeout(timer); asking?.abort();
  if (!looks.has(at)) {
    asking = new AbortController();
    const {signal} = asking, ids = tokens;
    try {
      if (wait) await new Promise((done) => { timer = setTimeout(done, wait); });
      const answer = await post("/gsa/look", {tokens: ids.slice(0, at + 1), position: at}, signal);
      if (ids !== tokens) return;
      looks.set(at, await answer.json());
    } catch (error) {
      if (error.name !== "AbortError") $("look-error").textContent = error.message;
      return;
    }
    if (chosen !== at) return;
  }
  show(looks.get(at));
}

// ---- the look

// Where in ascending positions the first one at or behind `at` stands.
function lowerBound(positions, at) {
  let low = 0, high = positions.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (positions[middle] < at) low = middle + 1; else high = middle;
  }
  return low;
}
// The weight of a position in a layer; undefined where it was not selected.
function weightIn(one, at) {
  const i = lowerBound(one.positions, at);
  return one.positions[i] === at ? one.weights[i] : undefined;
}
// Over all layers: the mean weight of each position, and how many layers selected it.
function meanOf() {
  if (mean) return mean;
  mean = {weight: new Float64Array(chosen + 1), by: new Uint16Array(chosen + 1)};
  for (const {positions, weights} of look.layers) {
    for (let i = 0; i < positions.length; ++i) {
      mean.weight[positions[i]] += weights[i] / look.layers.length;
      mean.by[positions[i]] += 1;
    }
  }
  return mean;
}
// Of the marked layer, or of the mean of all.
function weightAt(at) {
  if (layer >= 0) return weightIn(look.layers[layer], at);
  return meanOf().by[at] > 0 ? meanOf().weight[at] : undefined;
}
// The `count` strongest [position, weight] that `wanted` lets pass, strongest first.
function strongest(count, wanted = () => true) {
  const best = [];
  const add = (at, weight) => {
    if (best.length === count && weight <= best[count - 1][1] || !wanted(at)) return;
    let i = best.length;
    while (i > 0 && best[i - 1][1] < weight) --i;
    best.splice(i, 0, [at, weight]);
    if (best.length > count) best.pop();
  };
  if (layer >= 0) look.layers[layer].positions.forEach((at, i) => add(at, look.layers[layer].weights[i]));
  else meanOf().weight.forEach((weight, at) => { if (mean.by[at] > 0) add(at, weight); });
  return best;
}
// The next selected position in a direction; -1: none.
function nextSelected(at, step) {
  if (layer < 0) {
    for (at += step; at >= 0 && at <= chosen; at += step) if (meanOf().by[at] > 0) return at;
    return -1;
  }
  const {positions} = look.layers[layer], i = step > 0 ? lowerBound(positions, at + 1) : lowerBound(positions, at) - 1;
  return positions[i] ?? -1;
}

function show(next) {
  look = next; mean = null;
  layer = Math.min(layer, look.layers.length - 1);
  range = [0, chosen + 1];
  $("look").hidden = false;
  $("kind").textContent = `token ${grouped(chosen)}, “${visible(word(chosen))}”, `
    + `sees ${grouped(chosen + 1)} positions` + (look.sparse ? " · sparse attention" : " · dense attention");
  glance(); strip(); list(); tint(); readout();
}

function glance() {
  const sums = {sink: 0, far: 0, local: 0}, n = look.layers.length;
  meanOf().weight.forEach((weight, at) => { sums[kind(at)] += weight; });
  const average = (get) => look.layers.reduce((sum, one) => sum + get(one), 0) / n;
  const k = average((one) => one.k_t);
  const item = (name, value, text) =>
    make("div", {className: name}, make("b", {textContent: value}), make("span", {textContent: text}));
  const gates = [average((one) => one.value_gate), average((one) => one.output_gate)].map((x) => x.toFixed(2));
  $("glance").replaceChildren(
    item("sink", share(sums.sink), "on the first token"), item("far", share(sums.far), "on far positions"),
    item("local", share(sums.local), `on the last ${LOCAL}`),
    item("", share(average((one) => one.kept_mass)), "kept of dense attention"),
    item("", grouped(Math.round(k)), `keys of ${grouped(chosen + 1)}, mean k_t`),
    item("", gates.join(" / "), "value / output gate"));
}

const meter = (x) => make("i", {className: "meter"}, make("u", {style: `width:${(100 * x).toFixed(0)}%`}));

function strip() {
  const cell = (text, title = "") => make("span", {textContent: text, title});
  const head = make("div", {className: "row head"}, cell("layer"), make("div", {className: "axis"}),
    cell("k_t", "keys that the token attends to"),
    cell("kept mass", "share of dense attention that falls on these keys"),
    cell("value gate", "mean of the value gate's sigmoid"), cell("output gate", "mean of the output gate's sigmoid"));
  const rows = look.layers.map((one, n) => {
    const lane = make("div", {className: "lane"}, make("canvas"), make("i", {hidden: true}));
    lane.dataset.layer = n;
    const label = make("span", {textContent: n, title: `layer ${n}`});
    label.onclick = () => setLayer(layer === n ? -1 : n);
    const number = (x) => make("span", {}, meter(x), x.toFixed(2));
    return make("div", {className: "row", id: "layer" + n}, label, lane, cell(grouped(one.k_t)),
      make("span", {}, meter(one.kept_mass), share(one.kept_mass)), number(one.value_gate), number(one.output_gate));
  });
  $("strip").style.setProperty("--lane", look.layers.length <= 12 ? "32px" : "22px");
  $("strip").replaceChildren(head, ...rows);
  draw();
}

// A column a pixel: the strongest weight in it, and how many of its positions were selected.
function aggregate(one, width) {
  const [begin, end] = range, scale = width / (end - begin);
  const strongest = new Float32Array(width), at = new Int32Array(width).fill(-1), count = new Float32Array(width);
  for (let i = lowerBound(one.positions, begin); i < one.positions.length && one.positions[i] < end; ++i) {
    const x = Math.min(width - 1, Math.floor((one.positions[i] - begin) * scale));
    count[x] += 1;
    if (at[x] < 0 || one.weights[i] > strongest[x]) { strongest[x] = one.weights[i]; at[x] = one.positions[i]; }
  }
  return {strongest, at, count};
}

function draw() {
  const colours = {sink: colour("sink"), far: colour("far"), local: colour("local")};
  const [begin, end] = range, ratio = window.devicePixelRatio || 1;
  columns = look.layers.map((one, n) => {
    const canvas = $("layer" + n).querySelector("canvas"), box = canvas.parentElement;
    const wide = Math.max(1, Math.round(box.clientWidth * ratio));
    const high = Math.max(1, Math.round(box.clientHeight * ratio));
    canvas.width = wide; canvas.height = high;
    const pen = canvas.getContext("2d"), found = aggregate(one, wide), each = wide / (end - begin);
    const bar = Math.max(each >= 4 * ratio ? each - ratio : each, 1);
    for (let x = 0; x < wide; ++x) {
      const at = found.at[x];
      if (at < 0) continue;
      const left = each > 1 ? (at - begin) * each : x;
      pen.fillStyle = colours[kind(at)];
      pen.globalAlpha = 0.16 * Math.min(1, Math.max(0.4, found.count[x] * Math.max(each, 1 / 64)));  // selected at all
      pen.fillRect(left, 0, bar, high);
      const tall = height(found.strongest[x]);
      pen.globalAlpha = 0.45 + 0.55 * tall;
      // What is strong must not vanish in a column as thin as a pixel.
      pen.fillRect(left, high * (1 - tall), found.strongest[x] >= 0.02 ? Math.max(bar, 2 * ratio) : bar, high * tall);
    }
    pen.globalAlpha = 1;
    return {...found, ratio};
  });
  const middle = end - begin > 3 ? grouped(Math.floor((begin + end - 1) / 2)) : "";
  const labels = [grouped(begin), middle, grouped(end - 1)].map((text) => make("span", {textContent: text}));
  const ends = make("div", {className: "axis num"}, ...labels);
  $("strip").querySelector(".head .axis").replaceWith(ends);
  $("out").disabled = $("whole").disabled = begin === 0 && end === chosen + 1;
  $("in").disabled = end - begin <= 16;
  marks();
}

function marks() {
  for (const row of $("strip").querySelectorAll(".row[id]")) {
    const line = row.querySelector("i:not(.meter)"), n = Number(row.id.slice(5)), [begin, end] = range;
    row.classList.toggle("on", n === layer);
    line.hidden = cursor === null || cursor < begin || cursor >= end;
    if (!line.hidden) line.style.left = (100 * (cursor + 0.5 - begin) / (end - begin)).toFixed(3) + "%";
  }
  $("all-layers").disabled = layer < 0;
}

function zoom(factor) {
  const center = cursor ?? chosen, wanted = Math.round((range[1] - range[0]) * factor);
  const length = Math.min(chosen + 1, Math.max(16, wanted));
  const begin = Math.max(0, Math.min(center - (length >> 1), chosen + 1 - length));
  range = [begin, begin + length];
  draw();
}

function setLayer(n) { layer = n; marks(); list(); tint(); readout(); }
function readout() {
  const box = $("readout");
  if (cursor === null) {
    const [far] = strongest(1, (at) => kind(at) === "far");
    if (!far) { box.textContent = "No far position was selected."; return; }
    const text = `Strongest far position: ${grouped(far[0])}, ${share(far[1])}: `;
    box.replaceChildren(text, make("code", {}, ...context(far[0], 40, 40)));
    return;
  }
  const weight = weightAt(cursor);
  let text = `${layer < 0 ? "All layers" : "Layer " + layer}, position ${grouped(cursor)}`;
  text += cursor === chosen ? " (the token itself)" : ` (${grouped(chosen - cursor)} before the token)`;
  text += weight === undefined ? ", not selected" : `, ${layer < 0 ? "mean weight" : "weight"} ${share(weight)}`;
  if (layer < 0) text += `, selected by ${meanOf().by[cursor]} of ${look.layers.length} layers`;
  box.replaceChildren(text + ": ", make("code", {}, ...context(cursor, 48, 48)));
}

function list() {
  const best = strongest(16), most = best.length ? best[0][1] || 1 : 1;
  $("list-title").textContent = "Strongest positions, " + (layer < 0 ? "mean of all layers" : "layer " + layer);
  $("list").replaceChildren(...best.map(([at, weight]) => {
    const style = `width:${(100 * weight / most).toFixed(1)}%;background:var(--${kind(at)})`;
    const go = () => { setCursor(at); showWindow(at); scrollTo(at); };
    const where = at === chosen ? "itself" : `${grouped(at)} (−${grouped(chosen - at)})`;
    const button = make("button", {type: "button", onclick: go}, make("span", {className: "share", style}),
      make("small", {className: "num", textContent: share(weight)}),
      make("small", {className: "num at", textContent: where}),
      make("code", {}, ...context(at, 14, 22)));
    button.setAttribute("aria-label", `position ${at}, weight ${share(weight)}: ${visible(word(at))}`);
    return make("li", {}, button);
  }));
}

function setCursor(at) {
  if (cursor !== null) $("t" + cursor)?.classList.remove("cursor");
  cursor = at;
  if (cursor !== null) $("t" + cursor)?.classList.add("cursor");
  marks(); readout();
}

// ---- the mouse and the keys

$("tokens").addEventListener("click", (event) => {
  if (event.target.parentElement === $("tokens")) choose(Number(event.target.id.slice(1)));
});
const selectable = (at, step) => {
  for (let i = at + step; i >= 0 && i < tokens.length; i += step) if (!data || looks.has(i)) return i;
  return at;
};
// The token nearest to this one in the line above or below.
function nextLine(at, step) {
  const from = $("t" + at)?.getBoundingClientRect();
  if (!from) return at;
  let best = at, line = null, distance = Infinity;
  for (let i = at + step; $("t" + i); i += step) {
    const box = $("t" + i).getClientRects()[0];
    if (Math.abs(box.top - from.top) < 2) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > 2) break;
    const away = Math.abs(box.left - from.left);
    if (away < distance && (!data || looks.has(i))) { distance = away; best = i; }
  }
  return best === at ? selectable(at, step) : best;
}
$("tokens").addEventListener("keydown", (event) => {
  const next = {
    ArrowLeft: () => selectable(chosen, -1), ArrowRight: () => selectable(chosen, 1),
    ArrowUp: () => nextLine(chosen, -1), ArrowDown: () => nextLine(chosen, 1),
    Home: () => selectable(-1, 1), End: () => selectable(tokens.length, -1),
  }[event.key];
  if (!next || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault(); choose(next(), 150);
});
$("earlier").onclick = () => moveWindow(-WINDOW); $("later").onclick = () => moveWindow(WINDOW);
$("goto").onchange = () => {
  const typed = $("goto").value, at = Number(typed);
  if (Number.isInteger(at) && at >= 0 && at < tokens.length) choose(at);
  else $("look-error").textContent = `Position: expected 0 to ${tokens.length - 1}, got ${typed || "nothing"}`;
};

function positionAt(event, lane) {
  const box = lane.getBoundingClientRect(), n = Number(lane.dataset.layer), {at, ratio} = columns[n];
  const x = Math.max(0, Math.min(at.length - 1, Math.floor((event.clientX - box.left) * ratio)));
  const exact = Math.min(range[1] - 1, range[0] + Math.floor(x * (range[1] - range[0]) / at.length));
  if (range[1] - range[0] <= at.length / 4) return exact;
  // Positions are thinner than a hand is steady: the strongest one close by.
  let best = exact, most = -1;
  for (let i = Math.max(0, x - 3); i <= Math.min(at.length - 1, x + 3); ++i) {
    if (at[i] >= 0 && columns[n].strongest[i] > most) { most = columns[n].strongest[i]; best = at[i]; }
  }
  return best;
}
$("strip").addEventListener("pointermove", (event) => {
  const lane = event.target.closest?.(".lane");
  if (!lane) return;
  const n = Number(lane.dataset.layer), at = positionAt(event, lane);
  if (n !== layer) setLayer(n);
  if (at !== cursor) setCursor(at);
});
$("strip").addEventListener("click", (event) => {
  const lane = event.target.closest?.(".lane");
  if (lane) { const at = positionAt(event, lane); setCursor(at); showWindow(at); scrollTo(at); }
});
$("strip").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const move = (at) => {
    if (at < 0) return;
    setCursor(at);
    if (at < range[0] || at >= range[1]) zoom(1);
  };
  const act = {
    ArrowLeft: () => move(nextSelected(cursor ?? chosen + 1, -1)),
    ArrowRight: () => move(nextSelected(cursor ?? -1, 1)),
    Home: () => move(nextSelected(-1, 1)), End: () => move(nextSelected(chosen + 1, -1)),
    ArrowUp: () => setLayer(Math.max(-1, layer - 1)),
    ArrowDown: () => setLayer(Math.min(look.layers.length - 1, layer + 1)),
    "+": () => zoom(1 / 4), "=": () => zoom(1 / 4), "-": () => zoom(4), 0: () => zoom(1e9),
    Enter: () => { if (cursor !== null) choose(cursor); }, Escape: () => setCursor(null),
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});
$("in").onclick = () => zoom(1 / 4); $("out").onclick = () => zoom(4); $("whole").onclick = () => zoom(1e9);
$("all-layers").onclick = () => setLayer(-1);
let width = 0;
new ResizeObserver(() => {
  if (!look || $("strip").clientWidth === width) return;
  width = $("strip").clientWidth;
  draw();
}).observe($("strip"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (look) draw(); });

// ---- the server

async function request(path, options) {
  const headers = {"Content-Type": "application/json"};
  if ($("key").value) headers.Authorization = "Bearer " + $("key").value;
  let answer;
  try {
    answer = await fetch(path, {...options, headers});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: is it still running?");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text.slice(0, 300);
  try { message = JSON.parse(text).error.message; } catch { /* not JSON: its beginning is shown */ }
  if (answer.status === 401) message += " (set the API key above)";
  throw new Error(`${path}: ${message || "status " + answer.status}`);
}
const post = (path, body, signal) => request(path, {method: "POST", body: JSON.stringify(body), signal});

async function modelName() {
  if (!model) {
    model = (await (await request("/v1/models", {})).json()).data[0].id;
    $("subject").textContent = model;
  }
  return model;
}

// The events of a stream of server-sent events, as JSON.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new Error("The stream broke off: the server has ended it early");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const text = line.slice(5).trim();
      if (text === "[DONE]") return;
      const event = JSON.parse(text);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

let generating = null;
async function generate() {
  const number = (id) => Number($(id).value), prompt = $("prompt").value, shown = document.createTextNode("");
  generating = new AbortController();
  $("generate").disabled = true; $("stop").disabled = false;
  $("live-error").textContent = ""; $("speed").textContent = "waiting …";
  $("output").hidden = false;
  $("output").replaceChildren(make("span", {className: "prompt", textContent: prompt}), shown);
  const start = performance.now();
  let begin = 0, end = 0, usage = null;
  let read = [];
  const written = [];  // tokens, as the model has them
  const speed = (done) => {
    const n = written.length, seconds = (end - begin) / 1000;
    const parts = [begin ? `first token after ${((begin - start) / 1000).toFixed(2)} s` : "no token"];
    if (n > 1 && seconds > 0) parts.push(`${((n - 1) / seconds).toFixed(1)} tokens/s`);
    parts.push((usage ? grouped(usage.prompt_tokens) + " + " : "") + grouped(n) + " tokens");
    if (done) parts.push(done);
    $("speed").textContent = parts.join(" · ");
  };
  try {
    const body = {
      model: await modelName(), prompt, max_tokens: number("max_tokens"), temperature: number("temperature"),
      top_p: number("top_p"), stream: true, stream_options: {include_usage: true}, return_token_ids: true,
    };
    for (const name of ["seed", "top_k", "min_p", "repetition_penalty"]) if ($(name).value) body[name] = number(name);
    const stop = $("stop_at").value.replace(/\\(.)/g, (all, c) => ({n: "\n", t: "\t", "\\": "\\"})[c] ?? all);
    if (stop) body.stop = stop;
    for await (const event of events(await post("/v1/completions", body, generating.signal))) {
      if (event.usage) usage = event.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      read = choice.prompt_token_ids ?? read;
      end = performance.now();
      if (choice.token_ids?.length) { begin ||= end; written.push(...choice.token_ids); }
      if (choice.text) {
        shown.data += choice.text;
        $("output").scrollTop = $("output").scrollHeight;
      }
      speed("");
    }
    speed("done");
  } catch (error) {
    speed(error.name === "AbortError" ? "stopped" : "failed");
    if (error.name !== "AbortError") $("live-error").textContent = error.message;
  }
  generating = null;
  $("generate").disabled = false; $("stop").disabled = true;
  if (written.length) await inspect("/detokenize", {tokens: read.concat(written)});
}

// Of a prompt its tokens; of a text those that the model wrote: to tokenise it again could give others.
async function inspect(path, what) {
  $("inspect").disabled = true;
  try {
    const body = {model: await modelName(), ...what, return_token_strs: true};
    const answer = await (await post(path, body)).json();
    setText(what.tokens ?? answer.tokens, answer.token_strs);
    if (tokens.length) await choose(tokens.length - 1);
  } catch (error) {
    $("live-error").textContent = error.message;
  }
  $("inspect").disabled = false;
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault(); if (!generating) generate();
});
$("stop").onclick = () => generating?.abort();
$("inspect").onclick = () => { $("live-error").textContent = ""; inspect("/tokenize", {prompt: $("prompt").value}); };
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});

// ---- the start

if (data) {
  $("subject").textContent = [data.model, data.text].filter(Boolean).join(" · ");
  document.title = `${data.text}: look inside`;
  setText(data.tokens, data.token_strs);
  for (const one of data.looks) looks.set(one.position, one);
  choose(selectable(tokens.length, -1));
} else {
  $("live").hidden = false;
  modelName().catch((error) => {  // a key is asked for when there is something to do
    if (!/API key/.test(error.message)) $("live-error").textContent = error.message;
  });
}
