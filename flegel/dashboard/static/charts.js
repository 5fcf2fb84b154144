// Curves with uPlot, bars and flows on plain canvas. Reads runs, changes nothing.
"use strict";
(function (F) {
  const MOST = 1500; // points of a curve; more cannot be seen
  const DASH = [[], [6, 4], [2, 3], [8, 3, 2, 3]];
  const COLORS = ["compute", "wait", "moving", "respond", "lost"];

  class Chart {
    constructor(box, height) { this.box = box; this.height = height || 180; this.plot = null; this.shape = ""; }
    // lines: [{name, x, y, color, dash, step}]
    show(lines, label) {
      const shape = lines.map((l) => l.name).join("\n") + label + document.documentElement.className;
      const data = lines.length ? uPlot.join(lines.map((l) => thin(l.x, l.y))) : [[]];
      this.box.dataset.lines = lines.length; this.box.dataset.last = lines.length && lines[0].y.length ? String(lines[0].y[lines[0].y.length - 1]) : "";
      if (!this.plot || this.shape !== shape) {
        if (this.plot) this.plot.destroy();
        this.shape = shape;
        const soft = F.color("soft"), grid = { stroke: F.color("line"), width: 1 };
        this.plot = new uPlot({
          width: this.box.clientWidth || 400, height: this.height, legend: { show: lines.length > 1 }, cursor: { drag: { x: true, y: false } },
          scales: { x: { time: false } },
          axes: [{ stroke: soft, grid, label: label, labelSize: 16, size: 34 }, { stroke: soft, grid, size: 72, values: (_, v) => v.map((n) => (Math.abs(n) >= 1e5 ? F.count(n) : F.number(n, 4))) }],
          series: [{}, ...lines.map((l) => ({ label: l.name, stroke: F.color(l.color), dash: l.dash, width: 1.5, spanGaps: true, points: { show: false }, paths: l.step ? uPlot.paths.stepped({ align: 1 }) : undefined }))],
        }, data, this.box);
      } else this.plot.setData(data);
    }
    resize() { if (this.plot) this.plot.setSize({ width: this.box.clientWidth, height: this.height }); }
  }

  function thin(x, y) {
    const step = Math.ceil(x.length / MOST); if (step <= 1) return [x, y];
    const a = [], b = [];
    for (let i = 0; i < x.length; i += step) { a.push(x[i]); b.push(y[i]); }
    if ((x.length - 1) % step) { a.push(x[x.length - 1]); b.push(y[y.length - 1]); }
    return [a, b];
  }
  // uPlot wants x to grow; a resumed run may repeat a moment.
  function growing(x, y) { const a = [], b = []; for (let i = 0; i < x.length; i++) if (!a.length || x[i] > a[a.length - 1]) { a.push(x[i]); b.push(y[i]); } return { x: a, y: b }; }

  F.lines = function (runs, cursor, of) {
    const found = [];
    runs.forEach((run, i) => {
      for (const part of of(run, run.upto(cursor))) {
        const clean = growing(part.x, part.y);
        if (clean.x.length) found.push({ name: (part.name ? part.name + " " : "") + (runs.length > 1 || !part.name ? run.about.title + " · " + run.about.sync : ""), x: clean.x, y: clean.y, color: runs.length > 1 ? COLORS[i % 5] : part.color || COLORS[i % 5], dash: part.dash || (runs.length > 1 ? DASH[i % 4] : []), step: part.step });
      }
    });
    return found;
  };
  F.objective = (run, n) => run.rows.est.slice(0, n);
  F.bySeconds = (run, n) => [{ x: run.rows.t.slice(0, n), y: F.objective(run, n) }];
  F.byPasses = (run, n) => (run.points ? [{ x: run.rows.visits.slice(0, n).map((v) => v / run.points), y: F.objective(run, n) }] : []);
  F.intervals = (run, n) => (run.rows.eta.some((v) => v !== null) ? [{ x: run.rows.t.slice(0, n), y: run.rows.eta.slice(0, n), step: true }] : []);
  F.spreads = (run, n) => ["pmax", "pmed", "pmin"].map((k, i) => ({ name: ["most", "median", "least"][i], x: run.rows.t.slice(0, n), y: run.rows[k].slice(0, n), color: COLORS[i] })).filter((l) => l.y.some((v) => v !== null));
  F.throughput = function (run, n) {
    const t = run.rows.t, v = run.rows.visits, x = [], y = [], end = n ? t[n - 1] : 0, width = end / 120; let at = 0, from = 0, before = 0;
    for (let i = 0; i < n; i++) if (t[i] - from >= width || i === n - 1) { if (t[i] > from) { x.push(t[i]); y.push((v[i] - before) / (t[i] - from)); } from = t[i]; before = v[i]; at = i; }
    return [{ x, y, name: "points/s", color: "compute" }];
  };
  F.utilization = function (run, n) {
    const x = [], y = [], end = n ? run.rows.t[n - 1] : 0, slices = 80;
    if (run.lanes.size) {
      const sums = new Float32Array(3 * slices), out = new Float32Array(3 * slices); let lane = 0;
      for (const id of run.lanes.keys()) { if (run.shares(id, lane++, 0, Math.max(end, 1e-9), slices, out)) for (let i = 0; i < sums.length; i++) sums[i] += out[i]; }
      for (let i = 0; i < slices; i++) { const all = sums[3 * i] + sums[3 * i + 1] + sums[3 * i + 2]; if (all > 0) { x.push(((i + 1) * end) / slices); y.push((100 * sums[3 * i]) / all); } }
    } else for (let i = 1; i < run.looks.length; i++) {
      const a = run.looks[i - 1], b = run.looks[i], c = b.compute - a.compute, all = c + b.wait - a.wait + b.respond - a.respond;
      if (all > 0 && (end === 0 || b.at <= end + 1)) { x.push(b.at); y.push((100 * c) / all); }
    }
    return [{ x, y, name: "computing, %", color: "compute" }];
  };

  F.bars = function (canvas, worker) {
    const [pen, width] = F.fit(canvas, 120), p = worker ? worker.passes : [], top = Math.max(...p, 1e-9), n = p.length, step = n ? width / n : width;
    pen.fillStyle = F.color("compute");
    p.forEach((v, i) => pen.fillRect(i * step, 110 - (100 * v) / top, Math.max(0.5, step - (step > 4 ? 1 : 0)), (100 * v) / top));
    pen.fillStyle = F.color("soft"); pen.font = "10px system-ui"; pen.textAlign = "left"; pen.fillText(F.number(top, 4) + " passes", 2, 10);
    canvas.dataset.bars = n;
  };

  F.flow = function (canvas, ids, flows) {
    const [pen, width] = F.fit(canvas, 280), x0 = width / 2, y0 = 140, radius = 115, place = new Map();
    const involved = ids.length <= 64 ? ids : [...new Set(flows.flatMap((f) => [f[0], f[1]]))].sort((a, b) => a - b);
    involved.forEach((id, i) => { const angle = (2 * Math.PI * i) / Math.max(involved.length, 1) - Math.PI / 2; place.set(id, [x0 + radius * Math.cos(angle), y0 + radius * Math.sin(angle), angle]); });
    const most = Math.max(...flows.map((f) => f[2] + f[4]), 1);
    for (const [source, target, points, , under] of [...flows].reverse()) {
      const a = place.get(source), b = place.get(target); if (!a || !b) continue;
      pen.strokeStyle = F.color(under ? "moving" : "compute"); pen.globalAlpha = under ? 1 : 0.55; pen.lineWidth = 1 + (6 * (points + under)) / most;
      pen.beginPath(); pen.moveTo(a[0], a[1]); pen.quadraticCurveTo(x0 + (a[0] + b[0] - 2 * x0) / 6, y0 + (a[1] + b[1] - 2 * y0) / 6, b[0], b[1]); pen.stroke();
      pen.beginPath(); pen.fillStyle = pen.strokeStyle; pen.arc(b[0], b[1], 3 + pen.lineWidth / 2, 0, 7); pen.fill();
    }
    pen.globalAlpha = 1; pen.fillStyle = F.color("ink"); pen.font = "10px system-ui"; pen.textAlign = "center";
    for (const [id, [x, y, angle]] of place) { pen.beginPath(); pen.arc(x, y, 2.5, 0, 7); pen.fill(); pen.fillText(String(id), x + 13 * Math.cos(angle), y + 13 * Math.sin(angle) + 3); }
    if (!flows.length) { pen.fillStyle = F.color("soft"); pen.fillText("no points have moved", x0, y0); }
    canvas.dataset.flows = flows.length;
  };
  F.Chart = Chart;
})(Flegel);
