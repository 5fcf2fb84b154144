// Timelines on a canvas: a lane per worker, or a heat strip where there are many. Zooms and moves; keys do the same.
"use strict";
(function (F) {
  const LANES = 64; // beyond that a lane would be thinner than a hand's shake: colour tells the share of computing

  // Asked for after every change of the page, so it is read once for each theme: reading it makes the browser lay out anew.
  const colors = new Map();
  F.color = function (name) {
    const key = document.documentElement.className + " " + name;
    if (!colors.has(key)) colors.set(key, getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim());
    return colors.get(key);
  };

  F.fit = function (canvas, height) {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 600;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
      canvas.style.height = height + "px";
    }
    const pen = canvas.getContext("2d"); pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.clearRect(0, 0, width, height);
    return [pen, width];
  };

  function rgb(text) { const n = parseInt(text.slice(1), 16); return [n >> 16, (n >> 8) & 255, n & 255]; }

  class Timeline {
    constructor(box, tell) {
      this.box = document.createElement("div"); this.box.className = "timeline"; box.append(this.box);
      this.name = document.createElement("p"); this.name.className = "name";
      this.canvas = document.createElement("canvas"); this.canvas.tabIndex = 0; this.canvas.setAttribute("role", "img");
      this.box.append(this.name, this.canvas);
      this.window = null; this.tell = tell; this.run = null; this.cursor = null; this.left = 34;
      this.listen();
    }
    get span() { return this.window || [0, Math.max(this.cursor === null ? this.run.duration : this.run.duration, 1e-6)]; }
    listen() {
      const c = this.canvas; let from = null;
      c.addEventListener("wheel", (e) => { e.preventDefault(); this.zoom(Math.exp(e.deltaY / 500), this.time(e)); }, { passive: false });
      c.addEventListener("pointerdown", (e) => { from = [e.clientX, this.span]; c.setPointerCapture(e.pointerId); });
      c.addEventListener("pointerup", () => { from = null; });
      c.addEventListener("pointermove", (e) => {
        if (from) { const [a, b] = from[1], d = ((from[0] - e.clientX) / (c.clientWidth - this.left)) * (b - a); this.set(a + d, b + d); }
        else this.hover(e);
      });
      c.addEventListener("dblclick", () => { this.window = null; this.draw(); });
      c.addEventListener("keydown", (e) => {
        const [a, b] = this.span, step = (b - a) / 5, mid = (a + b) / 2;
        const does = { "+": () => this.zoom(0.7, mid), "=": () => this.zoom(0.7, mid), "-": () => this.zoom(1 / 0.7, mid), ArrowLeft: () => this.set(a - step, b - step), ArrowRight: () => this.set(a + step, b + step), 0: () => { this.window = null; this.draw(); } }[e.key];
        if (does) { e.preventDefault(); does(); }
      });
    }
    time(e) { const [a, b] = this.span, x = e.clientX - this.canvas.getBoundingClientRect().left - this.left; return a + (x / (this.canvas.clientWidth - this.left)) * (b - a); }
    zoom(factor, around) { const [a, b] = this.span; this.set(around - (around - a) * factor, around + (b - around) * factor); }
    set(a, b) {
      const all = Math.max(this.run.duration, 1e-6), wide = Math.min(Math.max(b - a, 1e-4), all);
      a = Math.min(Math.max(0, a), all - wide); this.window = wide >= all ? null : [a, a + wide]; this.draw();
    }
    ids() { const w = this.run.last && this.run.last.worker; return w && w.id.length ? w.id : [...this.run.lanes.keys()].sort((x, y) => x - y); }
    hover(e) {
      const ids = this.ids(); if (!ids.length) return;
      const y = e.clientY - this.canvas.getBoundingClientRect().top, lane = Math.floor(y / this.pitch), t = this.time(e);
      if (lane < 0 || lane >= ids.length || t < 0) return;
      this.tell(this.describe(ids[lane], lane, t));
    }
    describe(id, index, t) {
      const run = this.run, out = new Float32Array(3), [a, b] = this.span, w = (b - a) / 400;
      let text = "worker " + id, what = "nothing known";
      const host = run.last && run.last.worker.host ? run.last.hosts[run.last.worker.host[index]] : "";
      if (host) text += " on " + host;
      if (run.shares(id, index, t - w, t + w, 1, out)) what = F.kinds.map((k, i) => [out[i], F.words[k]]).filter((p) => p[0] > 0.005).sort((p, q) => q[0] - p[0]).map((p) => F.percent(p[0]) + " " + p[1]).join(", ");
      const n = run.upto(t), why = run.reasons.filter((r) => r.t <= (run.rows.t[n] === undefined ? Infinity : run.rows.t[n])).pop();
      return text + " at " + F.seconds(t) + ": " + what + (why ? " · " + run.about.sync + ": " + why.text : "");
    }
    show(run, cursor) { this.run = run; this.cursor = cursor; this.draw(); }
    draw() {
      const run = this.run, ids = this.ids(); if (!run) return;
      this.name.textContent = run.about.title + " · " + run.about.sync;
      const many = ids.length > LANES, pitch = many ? Math.max(1, Math.min(3, Math.floor(420 / ids.length))) || 1 : Math.max(7, Math.min(22, Math.floor(420 / Math.max(ids.length, 1))));
      this.pitch = many ? Math.max(0.4, 420 / ids.length) : pitch;
      const lanes = Math.max(ids.length * this.pitch, 20), height = lanes + 22, [pen, width] = F.fit(this.canvas, height);
      const [a, b] = this.span, wide = width - this.left, n = Math.max(10, Math.floor(many ? Math.min(wide, 600) : wide / 1));
      const stop = this.cursor === null ? b : Math.min(b, this.cursor);
      if (many) this.heat(pen, ids, a, b, stop, n, lanes, wide); else this.lanes(pen, ids, a, b, stop, n, wide);
      this.marks(pen, ids, a, b, lanes, wide);
      this.axis(pen, a, b, lanes, wide);
      this.canvas.setAttribute("aria-label", "Timeline of " + ids.length + " workers of " + run.about.title);
      this.canvas.dataset.lanes = ids.length; this.canvas.dataset.mode = many ? "heat" : "lanes"; this.canvas.dataset.from = a; this.canvas.dataset.to = b;
    }
    lanes(pen, ids, a, b, stop, n, wide) {
      const out = new Float32Array(3 * n), colors = F.kinds.map(F.color), step = wide / n, thick = this.pitch - 2, last = Math.ceil(((stop - a) / (b - a)) * n);
      pen.font = "10px system-ui"; pen.textAlign = "right";
      ids.forEach((id, lane) => {
        const y = lane * this.pitch;
        if (this.pitch >= 11 || lane % 4 === 0) { pen.fillStyle = F.color("soft"); pen.fillText(String(id), this.left - 6, y + Math.min(thick, 11)); }
        if (!this.run.shares(id, lane, a, b, n, out)) return;
        for (let kind = 0; kind < 3; kind++) {
          pen.fillStyle = colors[kind];
          let from = -1, height = 0, top = 0;
          for (let i = 0; i <= Math.min(last, n); i++) {
            const below = i < last ? (kind > 0 ? out[3 * i] : 0) + (kind > 1 ? out[3 * i + 1] : 0) : 0, h = i < Math.min(last, n) ? out[3 * i + kind] : 0;
            const y0 = Math.round((1 - below - h) * thick * 2) / 2, hh = Math.round(h * thick * 2) / 2;
            if (hh !== height || y0 !== top) { if (from >= 0 && height > 0) pen.fillRect(this.left + from * step, y + Math.max(0, top), (i - from) * step, height); from = i; height = hh; top = y0; }
          }
        }
      });
    }
    // A page with a thousand workers stays fluid: with spans the strip is made again only when it would look different,
    // with looks every look is one column that is made once.
    heat(pen, ids, a, b, stop, n, lanes, wide) {
      const work = rgb(F.color("compute")), idle = rgb(F.color("wait")), colors = new Uint32Array(101);
      for (let s = 0; s <= 100; s++) { const c = [0, 1, 2].map((k) => Math.round(idle[k] + (s / 100) * (work[k] - idle[k]))); colors[s] = (255 << 24) | (c[2] << 16) | (c[1] << 8) | c[0]; }
      pen.imageSmoothingEnabled = false;
      if (this.run.lanes.size) this.fromSpans(pen, ids, a, b, stop, n, lanes, wide, colors); else this.fromLooks(pen, ids, a, b, stop, lanes, wide, colors);
      pen.fillStyle = F.color("soft"); pen.font = "10px system-ui"; pen.textAlign = "right";
      for (let i = 0; i < ids.length; i += Math.ceil(ids.length / 16)) pen.fillText(String(ids[i]), this.left - 6, i * this.pitch + 10);
    }
    sheetFor(width, height) {
      const sheet = document.createElement("canvas"); sheet.width = width; sheet.height = height; return sheet;
    }
    fromLooks(pen, ids, a, b, stop, lanes, wide, colors) {
      const looks = this.run.looks, key = [this.run.id, ids.length, document.documentElement.className].join(" ");
      if (this.key !== key || this.sheet.width <= looks.length) { this.key = key; this.columns = []; this.sheet = this.sheetFor(2 * looks.length + 64, ids.length); }
      let same = 0;
      while (same < this.columns.length && this.columns[same] === looks[same]) same++;
      this.columns.length = same;
      const sheet = this.sheet.getContext("2d"), picture = new ImageData(1, ids.length), pixels = new Uint32Array(picture.data.buffer);
      for (let i = same; i < looks.length; i++) {
        const shares = i ? F.computing(looks[i - 1], looks[i], ids) : null;
        for (let lane = 0; lane < ids.length; lane++) pixels[lane] = shares && shares[lane] <= 100 ? colors[shares[lane]] : 0;
        sheet.putImageData(picture, i, 0); this.columns.push(looks[i]);
      }
      const x = (t) => this.left + ((Math.min(Math.max(t, a), stop) - a) / (b - a)) * wide;
      for (let i = 1; i < looks.length; i++) {
        const from = x(looks[i - 1].at), to = x(looks[i].at);
        if (to > from) pen.drawImage(this.sheet, i, 0, 1, ids.length, from, 0, to - from + 0.5, lanes);
      }
    }
    fromSpans(pen, ids, a, b, stop, n, lanes, wide, colors) {
      const key = [this.run.id, this.run.version, a, b, n, document.documentElement.className].join(" "), shown = Math.max(0, Math.min(1, (stop - a) / (b - a)));
      if (this.key !== key) { this.key = key; this.sheet = this.stripOfSpans(ids, a, b, n, colors); }
      if (shown > 0) pen.drawImage(this.sheet, 0, 0, shown * n, ids.length, this.left, 0, shown * wide, lanes);
    }
    stripOfSpans(ids, a, b, n, colors) {
      const picture = new ImageData(n, ids.length), pixels = new Uint32Array(picture.data.buffer), out = new Float32Array(3 * n), sheet = this.sheetFor(n, ids.length);
      ids.forEach((id, lane) => {
        if (!this.run.shares(id, lane, a, b, n, out)) return;
        for (let i = 0; i < n; i++) { const all = out[3 * i] + out[3 * i + 1] + out[3 * i + 2]; if (all > 0) pixels[lane * n + i] = colors[Math.round((100 * out[3 * i]) / all)]; }
      });
      sheet.getContext("2d").putImageData(picture, 0, 0);
      return sheet;
    }
    marks(pen, ids, a, b, lanes, wide) {
      const x = (t) => this.left + ((t - a) / (b - a)) * wide, run = this.run, r = run.rows;
      pen.fillStyle = F.color("moving");
      let from = null;
      for (let i = 0; i <= r.t.length; i++) {
        const on = i < r.t.length && r.flight[i] > 0;
        if (on && from === null) from = i ? r.t[i - 1] : 0;
        if (!on && from !== null) { const end = r.t[i - 1]; if (end > a && from < b) pen.fillRect(Math.max(this.left, x(from)), lanes + 1, Math.max(1, Math.min(x(end), this.left + wide) - Math.max(this.left, x(from))), 4); from = null; }
      }
      for (const i of (run.last && run.last.incidents) || []) {
        const lane = ids.indexOf(i.worker), at = x(i.at); if (i.at < a || i.at > b) continue;
        pen.fillStyle = F.color(i.kind === "lost" ? "lost" : "ink");
        pen.fillRect(at, lane < 0 ? 0 : lane * this.pitch, Math.max(2, (i.seconds / (b - a)) * wide), lane < 0 ? lanes : Math.max(this.pitch, 3));
      }
      if (this.cursor !== null && this.cursor >= a && this.cursor <= b) { pen.fillStyle = F.color("ink"); pen.fillRect(x(this.cursor), 0, 1, lanes); }
    }
    axis(pen, a, b, lanes, wide) {
      pen.fillStyle = F.color("soft"); pen.font = "10px system-ui"; pen.textAlign = "center";
      for (let i = 0; i <= 6; i++) { const t = a + ((b - a) * i) / 6; pen.textAlign = i === 6 ? "right" : i ? "center" : "left"; pen.fillText(F.seconds(t), this.left + (wide * i) / 6, lanes + 17); }
    }
    close() { this.box.remove(); }
  }
  F.Timeline = Timeline;
})(Flegel);
