// Runs as the page knows them, from frames. Draws nothing. Everything in a frame is data: it never becomes markup.
"use strict";
var Flegel = {};
(function (F) {
  const MOST_ROWS = 40000, MOST_LOOKS = 600, MOST_SPANS = 300000, MOST_LINES = 500;
  const COLUMNS = ["t", "it", "obj", "est", "eta", "visits", "cost", "flight", "bytes", "pmin", "pmed", "pmax"];

  const NUMBERS = ["points", "passes", "rate", "compute", "wait", "respond", "visits", "moving"];

  class Lane {
    constructor(id) { this.id = id; this.before = 0; this.begin = []; this.end = []; this.kind = []; this.ends = []; this.sums = []; }
    // A span of the trace becomes segments: 0 computing, 1 waiting, 2 answering a barrier (see flegel/compare/picture.py).
    add(sent, here, visits, compute, respond, wait) {
      const over = Math.min(Math.max(0, compute - (here - sent)), Math.max(0, sent - this.before));
      const done = Math.min(Math.max(0, compute - over), here - sent), b = this.before;
      for (const [x, y, kind] of [[b, b + over, 0], [b + over, sent, 1], [sent, sent + done, 0], [sent + done, here, 2]]) {
        if (y - x > 1e-9) { this.begin.push(x); this.end.push(y); this.kind.push(kind); }
      }
      const last = this.sums.length ? this.sums[this.sums.length - 1] : [0, 0, 0, 0];
      this.ends.push(here);
      this.sums.push([last[0] + compute, last[1] + wait, last[2] + respond, last[3] + visits]);
      this.before = Math.max(b, here);
    }
    forget() {
      const n = this.begin.length >> 1, m = this.ends.length >> 1;
      for (const part of [this.begin, this.end, this.kind]) part.splice(0, n);
      this.ends.splice(0, m); this.sums.splice(0, m);
    }
  }

  class Run {
    constructor(about) {
      this.about = about; this.id = about.run;
      this.rows = {}; for (const c of COLUMNS) this.rows[c] = [];
      this.reasons = []; this.lanes = new Map(); this.spans = 0;
      this.looks = []; this.lines = []; this.end = null; this.version = 0;
    }
    get last() { return this.looks.length ? this.looks[this.looks.length - 1] : null; }
    get duration() {
      const t = this.rows.t, a = t.length ? t[t.length - 1] : 0, l = this.last;
      return Math.max(a, l ? l.at : 0, this.end && this.end.result ? this.end.result.seconds : 0);
    }
    get points() { const l = this.last; return l ? l.points : 0; }
    takeRows(frame) {
      const r = this.rows;
      for (const row of frame.rows) {
        COLUMNS.forEach((c, i) => r[c].push(row[i]));
        if (row[12]) this.reasons.push({ t: row[0], it: row[1], eta: row[4], text: row[12] });
      }
      for (const s of frame.spans) {
        let lane = this.lanes.get(s[0]);
        if (!lane) { lane = new Lane(s[0]); this.lanes.set(s[0], lane); }
        lane.add(s[1], s[2], s[3], s[4], s[5], s[6]); this.spans++;
      }
      if (this.spans > MOST_SPANS) { for (const lane of this.lanes.values()) lane.forget(); this.spans = MOST_SPANS / 2; }
      if (r.t.length > MOST_ROWS) for (const c of COLUMNS) r[c] = r[c].filter((_, i) => i % 2 || i > MOST_ROWS / 2);
      if (this.reasons.length > 2000) this.reasons.splice(0, 1000);
    }
    // A thousand workers for half an hour stay below 100 MB: columns are typed, and those that repeat are shared.
    takeLook(frame) {
      const w = frame.worker, before = this.last;
      for (const k of NUMBERS) w[k] = Float32Array.from(w[k]);
      for (const k of ["id", "host"]) if (before && before.worker[k].length === w[k].length && before.worker[k].every((v, i) => v === w[k][i])) w[k] = before.worker[k];
      this.looks.push(frame);
      if (this.looks.length > MOST_LOOKS) { const n = this.looks.length; this.looks = this.looks.filter((_, i) => i % 2 === (n - 1) % 2); }
    }
    take(frame) {
      this.version++;
      if (frame.kind === "rows") this.takeRows(frame);
      else if (frame.kind === "look") this.takeLook(frame);
      else if (frame.kind === "log") { this.lines.push(...frame.lines); if (this.lines.length > MOST_LINES) this.lines.splice(0, this.lines.length - MOST_LINES); }
      else if (frame.kind === "end") this.end = frame;
    }
    // How many rows there are until a moment; null is the end.
    upto(t) {
      const a = this.rows.t; if (t === null) return a.length;
      let lo = 0, hi = a.length;
      while (lo < hi) { const mid = (lo + hi) >> 1; if (a[mid] <= t) lo = mid + 1; else hi = mid; }
      return lo;
    }
    lookAt(t) {
      if (t === null) return this.last;
      let found = null;
      for (const look of this.looks) { if (look.at > t + 1e-9) break; found = look; }
      return found;
    }
    // The workers at a moment: from a look where there is one, otherwise summed up from spans.
    workersAt(t) {
      const look = this.lookAt(t);
      if (look || !this.last) return look ? look.worker : null;
      const w = this.last.worker, sums = w.id.map((id) => {
        const lane = this.lanes.get(id); if (!lane) return [0, 0, 0, 0];
        let lo = 0, hi = lane.ends.length;
        while (lo < hi) { const mid = (lo + hi) >> 1; if (lane.ends[mid] <= t) lo = mid + 1; else hi = mid; }
        return lo ? lane.sums[lo - 1] : [0, 0, 0, 0];
      });
      return Object.assign({}, w, {
        compute: sums.map((s) => s[0]), wait: sums.map((s) => s[1]), respond: sums.map((s) => s[2]), visits: sums.map((s) => s[3]),
        passes: sums.map((s, i) => (w.points[i] ? s[3] / w.points[i] : 0)), rate: sums.map((s) => (s[0] ? s[3] / s[0] : 0)),
        moving: sums.map(() => 0),
      });
    }
    // Shares of computing, waiting and answering of one worker in n slices of [a, b]; false where nothing is known.
    shares(id, index, a, b, n, out) {
      out.fill(0);
      const lane = this.lanes.get(id), width = (b - a) / n;
      if (lane && lane.begin.length && lane.begin[0] <= b) {
        let i = 0, hi = lane.end.length;
        while (i < hi) { const mid = (i + hi) >> 1; if (lane.end[mid] <= a) i = mid + 1; else hi = mid; }
        for (; i < lane.begin.length && lane.begin[i] < b; i++) spread(lane.begin[i], lane.end[i], lane.kind[i], a, width, n, out, 1);
        const waits = this.end || (this.last && this.last.worker.state[index] === "r"); // its report is in, others' are not
        if (waits && lane.before < b && lane.before < this.duration) spread(Math.max(lane.before, a), Math.min(this.duration, b), 1, a, width, n, out, 1);
        return true;
      }
      let any = false;
      for (let i = 1; i < this.looks.length; i++) {
        const x = this.looks[i - 1], y = this.looks[i];
        if (y.at <= a || x.at >= b || y.at <= x.at) continue;
        const p = y.worker, q = x.worker, at = p.id[index] === id ? index : p.id.indexOf(id), was = q.id[index] === id ? index : q.id.indexOf(id);
        if (at < 0) continue;
        const d = ["compute", "wait", "respond"].map((k) => Math.max(0, p[k][at] - (was < 0 ? 0 : q[k][was])));
        const all = d[0] + d[1] + d[2]; if (!(all > 0)) continue;
        any = true;
        for (let kind = 0; kind < 3; kind++) spread(x.at, y.at, kind, a, width, n, out, d[kind] / all);
      }
      return any;
    }
  }

  function spread(begin, end, kind, a, width, n, out, weight) {
    const x = Math.max(0, (begin - a) / width), y = Math.min(n, (end - a) / width);
    for (let i = Math.floor(x); i < y; i++) out[3 * i + kind] += weight * (Math.min(i + 1, y) - Math.max(i, x));
  }

  // Share of computing between two looks, in percent by worker; 255 where nothing is known. Kept with the later look.
  F.computing = function (x, y, ids) {
    if (y.since === x.at && y.shares && y.shares.length === ids.length) return y.shares;
    const p = y.worker, q = x.worker, found = new Uint8Array(ids.length).fill(255);
    for (let i = 0; i < ids.length; i++) {
      const at = p.id[i] === ids[i] ? i : p.id.indexOf(ids[i]), was = q.id[i] === ids[i] ? i : q.id.indexOf(ids[i]); if (at < 0) continue;
      const c = p.compute[at] - (was < 0 ? 0 : q.compute[was]), all = c + p.wait[at] + p.respond[at] - (was < 0 ? 0 : q.wait[was] + q.respond[was]);
      if (all > 0) found[i] = Math.max(0, Math.min(100, Math.round((100 * c) / all)));
    }
    y.since = x.at; y.shares = found; return found;
  };

  F.Run = Run;
  F.kinds = ["compute", "wait", "respond"];
  F.words = { compute: "computing", wait: "waiting", respond: "answering a barrier", moving: "points move", lost: "lost" };
  F.number = function (v, digits) {
    if (v === null || v === undefined || Number.isNaN(v)) return "–";
    const a = Math.abs(v);
    return a !== 0 && (a >= 1e7 || a < 1e-4) ? v.toExponential(4) : String(+v.toPrecision(digits || 6));
  };
  F.count = function (v) {
    for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) if (Math.abs(v) >= size) return +(v / size).toPrecision(4) + unit;
    return String(Math.round(v));
  };
  F.seconds = (v) => (v === null || v === undefined ? "–" : v < 1 ? +(v * 1000).toPrecision(3) + " ms" : +v.toPrecision(4) + " s");
  F.percent = (v) => Math.round(100 * v) + " %";
})(Flegel);
