// What the browser does in an interactive map beside what Bokeh does. interactive.py hands over the names that are used
// here: all columns (`buffers`, `guards`, `owners`, `damages`, `marks`), by scale what is drawn of them (`seen`) and where
// (`plots`), and colours with a dark form (`themed`).

const MOST = 1500; // buffers that are drawn one by one
const PLACES = 700; // beside each other, where there are more
const BAR = {guards: [0.12, 0.88], damages: [0, 1]};

const hex = (address) => `0x${address.toString(16)}`;
const span = (start, nbytes) => `${hex(start)} to ${hex(start + Math.max(nbytes, 1) - 1)}`;
const grouped = (number) => number.toLocaleString("en");
const color_of = (i) => (buffers.data.alive[i] ? colors[buffers.data.role[i].split(/[ ,]/)[0]] ?? "#595959" : "white");

function size(nbytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let amount = nbytes, unit = 0;
  while (amount >= 1023.95 && unit < units.length - 1) { amount /= 1024; unit += 1; }
  const text = unit && amount < 999.95 ? amount.toFixed(1).replace(/\.0$/, "") : amount.toFixed(0);
  return unit ? `${grouped(nbytes)} B (${text} ${units[unit]})` : `${text} B`;
}

function guarded(i) {
  const {head_guard, tail_guard, gap} = buffers.data;
  if (!head_guard[i] && !tail_guard[i]) return "none";
  const between = gap[i] ? `, ${grouped(gap[i])} B of others between` : "";
  return `${grouped(head_guard[i])} B before, ${grouped(tail_guard[i])} B after${between}`;
}

// Rows that reach into a window, and nothing of the rest.
function visible(source, scale, start, end) {
  const left = source.data[`left_${scale}`], right = source.data[`right_${scale}`];
  const found = [];
  for (let i = 0; i < left.length; i++) if (left[i] <= end && right[i] >= start) found.push(i);
  return found;
}

function one(i, scale) {
  const data = buffers.data, base = -step * data.lane[i];
  return {
    left: data[`left_${scale}`][i], right: data[`right_${scale}`][i], bottom: base, top: base + 1,
    color: color_of(i), line: "#000000", name: data.name[i], form: data.form[i], size: size(data.nbytes[i]),
    address: span(data.start[i], data.nbytes[i]), role: data.role[i], guard: guarded(i),
    also: data.also[i] || "-", findings: data.findings[i] || "-",
  };
}

// Neighbours that are too narrow to be told apart, as one bar that says so.
function many(run, scale) {
  const data = buffers.data, left = data[`left_${scale}`], right = data[`right_${scale}`];
  const widths = {};
  let nbytes = 0, stop = 0, far = 0, bad = 0;
  for (const i of run) {
    const color = color_of(i);
    widths[color] = (widths[color] ?? 0) + right[i] - left[i];
    nbytes += data.nbytes[i];
    stop = Math.max(stop, data.start[i] + data.nbytes[i]);
    far = Math.max(far, right[i]);
    bad += data.findings[i] ? 1 : 0;
  }
  const color = Object.keys(widths).reduce((best, each) => (widths[each] > widths[best] ? each : best));
  const first = run[0], base = -step * data.lane[first];
  return {
    left: left[first], right: far, bottom: base, top: base + 1, color, line: color,
    name: `${grouped(run.length)} buffers; zoom in`, form: "-", size: size(nbytes),
    address: span(data.start[first], stop - data.start[first]), role: "-", guard: "-", also: "-",
    findings: bad ? `on ${grouped(bad)} of them` : "-",
  };
}

function bars(rows, scale, start, end) {
  if (rows.length <= MOST) return rows.map((i) => one(i, scale));
  const data = buffers.data, left = data[`left_${scale}`], right = data[`right_${scale}`];
  const place = (end - start) / PLACES, runs = new Map(), made = [];
  const close = (lane) => {
    const run = runs.get(lane);
    if (run) made.push(run.length > 1 ? many(run, scale) : one(run[0], scale));
    runs.delete(lane);
  };
  for (const i of rows) {
    const lane = data.lane[i], run = runs.get(lane);
    if (run && right[i] - left[run[0]] <= place) { run.push(i); continue; }
    close(lane);
    runs.set(lane, [i]);
  }
  [...runs.keys()].forEach(close);
  return made;
}

function parts(kind, scale, start, end) {
  const source = {guards, damages}[kind], data = source.data;
  return visible(source, scale, start, end).map((i) => {
    const of = data.buffer[i], base = -step * buffers.data.lane[of];
    const before = data.start[i] < buffers.data.start[of];
    return {
      left: data[`left_${scale}`][i], right: data[`right_${scale}`][i],
      bottom: base + BAR[kind][0], top: base + BAR[kind][1], size: size(data.nbytes[i]),
      name: `${kind === "guards" ? (before ? "before " : "after ") : ""}${buffers.data.name[of]}`,
      address: span(data.start[i], data.nbytes[i]),
      told: kind === "damages" ? marks.data.told[marks.data.finding.indexOf(data.finding[i])] : "",
      hatch: kind === "damages" && !data.exact[i] ? "x" : " ",
    };
  });
}

function owned(scale, start, end) {
  const data = owners.data;
  return visible(owners, scale, start, end).map((i) => {
    const base = -step * buffers.data.lane[data.buffer[i]] + 1.06 + 0.13 * data.place[i];
    return {
      left: data[`left_${scale}`][i], right: data[`right_${scale}`][i], bottom: base, top: base + 0.09,
      name: data.name[i], relation: data.relation[i], address: span(data.start[i], data.nbytes[i]),
    };
  });
}

// Names over the buffers that have room for them.
function names(drawn, start, end, letters) {
  const found = [];
  for (const bar of drawn) {
    const from = Math.max(bar.left, start), to = Math.min(bar.right, end);
    const most = Math.floor(((to - from) / (end - start)) * letters) - 1;
    if (most < 6 || bar.line !== "#000000") continue;
    const text = bar.name.length <= most ? bar.name : `…${bar.name.slice(1 - most)}`;
    found.push({x: (from + to) / 2, y: (bar.bottom + bar.top) / 2, text});
  }
  return found;
}

// Letters that fit beside each other in a plot.
const room = (scale) => Math.max(20, Math.floor((plots[scale].inner_width || 1200) / 7.3));

// Victim and culprit below each visible finding, as far as they fit beside each other, else its number alone. A finding
// whose place is outside keeps its label at the edge while some of its buffer is visible.
function labels(scale, start, end, rows) {
  const data = marks.data, lit = new Set(rows), share = (end - start) / room(scale);
  const near = [];
  for (let i = 0; i < data.label.length; i++) {
    const left = data[`left_${scale}`][i], right = data[`right_${scale}`][i];
    if ((left <= end && right >= start) || lit.has(data.buffer[i])) near.push([data[`x_${scale}`][i], i]);
  }
  near.sort(([one], [other]) => one - other);
  const free = new Map(), found = [];
  near.forEach(([place, i], at) => {
    const lane = data.lane[i], before = free.get(lane) ?? start;
    const next = near.slice(at + 1).find(([, other]) => data.lane[other] === lane);
    const within = (half) => Math.min(Math.max(place, start + half), end - half);
    const fits = (text, middle, half) =>
      middle - half >= before - 1e-9 && middle + half <= (next ? Math.max(next[0] - 3 * share, start) : end) + 1e-9;
    for (const text of [data.caption[i], data.label[i]]) {
      const half = (text.length * share) / 2, middle = within(half);
      if (2 * half > end - start || !(fits(text, middle, half) || text === data.label[i])) continue;
      found.push({x: middle, y: data.y[i], text});
      free.set(lane, middle + half + share);
      break;
    }
  });
  return found;
}

// As many rows as the visible buffers need.
function fit(scale, rows) {
  const plot = plots[scale], lanes = 1 + rows.reduce((most, i) => Math.max(most, buffers.data.lane[i]), 0);
  const height = heights[0] + heights[1] * (lanes - 1);
  if (plot.height === height) return;
  plot.y_range.start = -step * (lanes - 1) - 0.5;
  plot.height = height;
}

function put(source, rows) {
  const data = {};
  for (const name of Object.keys(source.data)) data[name] = rows.map((row) => row[name]);
  source.data = data;
}

function draw(scale) {
  const {start, end} = ranges[scale];
  const rows = visible(buffers, scale, start, end), drawn = bars(rows, scale, start, end);
  const few = rows.length <= MOST;
  put(seen[scale].buffers, drawn);
  put(seen[scale].guards, few ? parts("guards", scale, start, end) : []);
  put(seen[scale].owners, few ? owned(scale, start, end) : []);
  put(seen[scale].damages, parts("damages", scale, start, end));
  put(seen[scale].names, names(drawn, start, end, room(scale)));
  if (marks.data.label.length) put(seen[scale].labels, labels(scale, start, end, rows));
  fit(scale, rows);
}

// At most once a frame, however fast the map is panned.
function soon(scale) {
  const source = seen[scale].names;
  if (source.is_due) return;
  source.is_due = true;
  requestAnimationFrame(() => { source.is_due = false; draw(scale); });
}

// Show a finding's own window, or a buffer with room about it, on both scales.
function go(source, i) {
  for (const scale of Object.keys(ranges)) {
    if (source === marks) {
      ranges[scale].setv({start: marks.data[`from_${scale}`][i], end: marks.data[`to_${scale}`][i]});
      continue;
    }
    const [low, high] = ends[scale], least = scale === "bytes" ? 64 : 16;
    const from = source.data[`left_${scale}`][i], to = source.data[`right_${scale}`][i];
    const room = Math.max((to - from) * 1.5, least);
    ranges[scale].setv({start: Math.max(low, from - room), end: Math.min(high, to + room)});
  }
}

// Keep the rows of the table that hold a text, or an address.
function find(text) {
  const data = buffers.data, wanted = text.trim().toLowerCase();
  const address = /^0x[0-9a-f]+$/.test(wanted) ? Number(wanted) : null;
  const holds = (column, i) => column[i].toLowerCase().includes(wanted);
  const fits = (i) => address !== null
    ? data.start[i] <= address && address < data.start[i] + Math.max(data.nbytes[i], 1)
    : [data.name, data.also, data.form, data.role, data.findings].some((column) => holds(column, i));
  const kept = [];
  for (let i = 0; i < data.name.length; i++) if (fits(i)) kept.push(i);
  view.filter.indices = kept;
  said.text = wanted ? `${grouped(kept.length)} of ${grouped(data.name.length)} buffers` : "";
  if (wanted && kept.length) buffers.selected.indices = [kept[0]];
}

// The theme of the notebook that shows the page in a frame, else of the browser.
function is_dark() {
  try {
    const light = parent !== window && parent.document.body.dataset.jpThemeLight;
    if (light === "true" || light === "false") return light === "false";
  } catch { /* a frame of another site */ }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function dress() {
  const dark = is_dark();
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  for (const [model, name, light, night] of themed) model[name] = dark ? night : light;
}

function follow_theme() {
  dress();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
  try {
    const seen = {attributes: true, attributeFilter: ["data-jp-theme-light"]};
    if (parent !== window) new MutationObserver(dress).observe(parent.document.body, seen);
  } catch { /* a frame of another site */ }
}

// One script for all that happens: who calls says what to do.
if (cb_obj === ranges.log) soon("log");
else if (cb_obj === ranges.bytes) soon("bytes");
else if (cb_obj === sought) find(sought.value);
else if (cb_obj === buffers.selected) { if (cb_obj.indices.length) go(buffers, cb_obj.indices[0]); }
else if (cb_obj === marks.selected) { if (cb_obj.indices.length) go(marks, cb_obj.indices[0]); }
else if (cb_obj === plots.log) soon("log");
else if (cb_obj === plots.bytes) soon("bytes");
else { follow_theme(); Object.keys(ranges).forEach(draw); } // the page is ready
