// The page: takes frames from the server, and shows the chosen runs at the chosen moment.
"use strict";
(function (F) {
  const $ = (id) => document.getElementById(id);
  const runs = new Map(), chosen = new Set(), timelines = new Map(), charts = {};
  let cluster = null, cursor = null, playing = null, mayAct = false, dirty = true, dropped = 0, drawn = 0;

  for (const id of ["by-seconds", "by-passes", "intervals", "spreads", "rates", "utilizations"]) charts[id] = new F.Chart($(id), id === "spreads" || id === "rates" || id === "utilizations" ? 150 : 190);
  for (const kind of ["compute", "wait", "respond", "moving", "lost"]) {
    const item = document.createElement("span"), swatch = document.createElement("span");
    swatch.className = "swatch " + kind; item.append(swatch, F.words[kind]); $("legend").append(item);
  }

  function take(frame) {
    dirty = true;
    if (frame.kind === "cluster") { cluster = frame; return; }
    if (frame.kind === "dropped") { dropped = frame.count; return; }
    if (frame.kind === "closed") { $("connection").textContent = "the dashboard has ended; this page keeps what it has"; return "closed"; }
    if (frame.kind === "job") { if (!runs.has(frame.run) || frame.reset) { runs.set(frame.run, new F.Run(frame)); if (!chosen.size) chosen.add(frame.run); } return; }
    const run = runs.get(frame.run); if (run) run.take(frame);
  }

  function chosenRuns() { return [...runs.values()].filter((r) => chosen.has(r.id)); }

  function chooser() {
    const box = $("runs"), names = [...runs.keys()].join("\n");
    if (box.dataset.names !== names) {
      box.dataset.names = names; box.replaceChildren();
      for (const run of runs.values()) {
        const label = document.createElement("label"), tick = document.createElement("input"), name = document.createElement("bdi");
        tick.type = "checkbox"; tick.value = run.id; name.textContent = " " + run.about.title + " · " + run.about.sync;
        label.title = run.about.title.slice(0, 500);
        tick.addEventListener("change", () => { if (tick.checked) chosen.add(run.id); else chosen.delete(run.id); dirty = true; });
        label.append(tick, name); box.append(label);
      }
    }
    for (const tick of box.querySelectorAll("input")) tick.checked = chosen.has(tick.value);
    $("overlay").hidden = runs.size < 2; $("overlay").textContent = chosen.size < runs.size ? "Overlay all" : "Only the first";
  }

  function figures(run) {
    const n = run.upto(cursor), r = run.rows, look = run.lookAt(cursor) || run.last, done = cursor === null && run.end ? run.end.result : null;
    F.text("title", run.about.title); F.text("subtitle", run.about.algorithm + " · " + run.about.sync + " · " + run.about.data);
    $("title").title = run.about.title.slice(0, 500);
    const phase = look ? look.phase : "starting";
    F.text("state", done ? (done.converged ? "converged: " : "stopped: ") + done.reason : run.end && run.end.error ? run.end.error : phase === "loading" && look ? "loading: " + look.loaded + " of " + look.loads : phase);
    const value = done ? done.objective : n ? r.est[n - 1] : null;
    F.text("objective", F.number(value, 8), value);
    const barriers = done ? done.iterations : n ? r.it[n - 1] : 0; F.text("iterations", barriers, barriers);
    const seconds = done ? done.seconds : n ? r.t[n - 1] : 0; F.text("seconds", F.number(seconds, 5), seconds);
    const back = Math.max(0, run.upto(Math.max(0, (n ? r.t[n - 1] : 0) - 5)) - 1), span = n ? r.t[n - 1] - r.t[back] : 0;
    F.text("throughput", span > 0 ? F.count((r.visits[n - 1] - r.visits[back]) / span) : n && r.t[n - 1] > 0 ? F.count(r.visits[n - 1] / r.t[n - 1]) : "–");
    const w = run.workersAt(cursor), sum = (k) => (w ? w[k].reduce((a, b) => a + b, 0) : 0), busy = sum("compute"), all = busy + sum("wait") + sum("respond");
    const used = done ? done.utilization : all > 0 ? busy / all : null;
    F.text("utilization", used === null ? "–" : F.percent(used), used);
    const count = look ? look.members + (look.resting ? ` (${look.resting} rest)` : "") : run.about.workers;
    F.text("workers-count", count, look ? look.members : run.about.workers);
    F.text("in-flight", F.count(n ? r.flight[n - 1] : 0)); const moved = n ? r.bytes[n - 1] : look ? look.moved_bytes : 0; F.text("moved", F.count(moved) + "B", moved);
    $("actions").hidden = !mayAct || !run.about.live || Boolean(run.end);
    return [n, look, w];
  }

  // What is to be drawn, in order: figures and timelines answer the hand, charts and tables follow.
  function parts() {
    const shown = chosenRuns(), run = shown[0];
    const steps = [() => { chooser(); $("empty").hidden = runs.size > 0 || Boolean(cluster); $("main").hidden = !run; }, drawCluster];
    if (!run) return steps;
    let n, look, worker;
    steps.push(() => {
      [n, look, worker] = figures(run); const end = Math.max(...shown.map((r) => r.duration), 1e-6);
      $("time").value = cursor === null ? 1000 : Math.round((1000 * cursor) / end);
      F.text("moment", cursor === null ? F.seconds(end) : F.seconds(cursor) + " of " + F.seconds(end));
      for (const [id, line] of timelines) if (!chosen.has(id)) { line.close(); timelines.delete(id); }
    });
    for (const each of shown.slice(0, 4)) steps.push(() => {
      if (!timelines.has(each.id)) timelines.set(each.id, new F.Timeline($("timelines"), (text) => F.text("told", text)));
      timelines.get(each.id).show(each, cursor);
    });
    const chart = (id, of, label) => steps.push(() => charts[id].show(F.lines(shown, cursor, of), label));
    chart("by-seconds", F.bySeconds, "seconds"); chart("by-passes", F.byPasses, "passes over the data");
    chart("intervals", F.intervals, "seconds"); chart("spreads", F.spreads, "seconds");
    chart("rates", F.throughput, "seconds"); chart("utilizations", F.utilization, "seconds");
    steps.push(() => F.workers(run, worker, $("find").value.trim()));
    steps.push(() => {
      F.bars($("passes"), worker);
      const p = worker ? worker.passes.filter((_, i) => worker.points[i]) : [];
      F.text("spread", p.length ? "spread " + F.number(Math.max(...p) - Math.min(...p), 3) + " passes" : "");
    });
    steps.push(() => {
      const flows = look ? look.flows : [];
      F.flow($("flow"), worker ? worker.id : [], cursor === null || look !== run.last || run.looks.length > 1 ? flows : n ? flows : []); F.flowsTable(flows);
    });
    steps.push(() => F.reasonsTable(run, cursor)); steps.push(() => { F.hosts(run, worker); F.incidents(run, cursor); F.sites(look); F.log(run); });
    return steps;
  }
  function draw() { for (const step of parts()) step(); }

  function drawCluster() {
    $("cluster").hidden = !cluster; if (!cluster) return;
    F.text("cluster-error", cluster.error || "");
    F.table($("jobs"), [["job"], ["owner"], ["state"], ["algorithm"], ["data"], ["workers", 1], ["priority", 1], ["where"], ["what"]], [...cluster.jobs].reverse().slice(0, 100).map((j) => [j.job, j.owner, j.state, j.algorithm, j.data, j.workers === null ? "–" : j.workers, j.priority, j.place, j.reason]));
    F.table($("slaves"), [["slave"], ["address"], ["slots", 1], ["used", 1], ["load", 1], ["state"]], cluster.slaves.map((s) => [s.name, s.address, s.slots, s.used, F.number(s.load, 3), s.state]));
  }

  async function act(action, workers) {
    const run = chosenRuns()[0]; if (!run) return;
    const body = { action: action, run: run.id }; if (workers) body.workers = workers;
    try {
      const answer = await fetch("action", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
      F.text("answer", await answer.text()); $("answer").className = answer.ok ? "" : "bad";
    } catch (error) { F.text("answer", "The dashboard does not answer."); $("answer").className = "bad"; }
  }

  function play() {
    const shown = chosenRuns(), end = Math.max(...shown.map((r) => r.duration), 1e-6);
    if (playing) { clearInterval(playing); playing = null; } else {
      if (cursor === null || cursor >= end) cursor = 0;
      const step = end / 200;
      playing = setInterval(() => { cursor += step; if (cursor >= end) { cursor = null; clearInterval(playing); playing = null; $("play").textContent = "▶"; } dirty = true; }, 60);
    }
    $("play").textContent = playing ? "❚❚" : "▶";
  }
  function toEnd() { if (playing) play(); cursor = null; dirty = true; }
  function theme(dark) { document.documentElement.classList.toggle("dark", dark); dirty = true; }

  $("time").addEventListener("input", () => { const end = Math.max(...chosenRuns().map((r) => r.duration), 1e-6), v = Number($("time").value); cursor = v >= 1000 ? null : (v * end) / 1000; dirty = true; loop(true); });
  $("play").addEventListener("click", play); $("now").addEventListener("click", toEnd);
  $("theme").addEventListener("click", () => theme(!document.documentElement.classList.contains("dark")));
  $("overlay").addEventListener("click", () => { if (chosen.size < runs.size) for (const id of runs.keys()) chosen.add(id); else { const first = runs.keys().next().value; chosen.clear(); chosen.add(first); } dirty = true; });
  $("cancel").addEventListener("click", () => act("cancel")); $("scale").addEventListener("click", () => act("scale", Number($("scale-to").value)));
  $("find").addEventListener("input", () => { dirty = true; loop(true); });
  document.addEventListener("keydown", (e) => {
    if (e.target instanceof HTMLInputElement || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === " " && !(e.target instanceof HTMLButtonElement)) { e.preventDefault(); play(); } else if (e.key === "n") toEnd(); else if (e.key === "d") theme(!document.documentElement.classList.contains("dark")); else if (e.key === "o") $("overlay").click();
  });
  window.addEventListener("resize", () => { for (const c of Object.values(charts)) c.resize(); dirty = true; });
  theme(window.matchMedia("(prefers-color-scheme: dark)").matches);

  // Drawing takes at most a quarter of the time and gives way to the hand after each slice: a page with a thousand
  // workers stays fluid. Something new while charts are still to be drawn begins from the figures again.
  const SLICE = 30;
  let rests = 0, waiting = [];
  function slice(began) {
    const from = performance.now();
    while (waiting.length && performance.now() - from < SLICE) waiting.shift()();
    if (waiting.length) { setTimeout(() => slice(began), 0); return; }
    rests = performance.now() + Math.max(playing ? 40 : 200, 3 * (performance.now() - began)); document.body.dataset.drawn = ++drawn;
  }
  function loop(hand) {
    const now = performance.now();
    if (!dirty || document.hidden || (waiting.length ? !hand : now < rests && !hand)) return;
    dirty = false;
    const under = waiting.length > 0; waiting = parts(); if (!under) slice(now);
  }
  setInterval(() => loop(false), 50);

  fetch("rights").then((r) => r.json()).then((r) => { mayAct = r.act; dirty = true; }).catch(() => { mayAct = false; });
  const source = new EventSource("events");
  source.onmessage = (e) => { if (take(JSON.parse(e.data)) === "closed") source.close(); else F.text("connection", dropped ? dropped + " frames were dropped, and repeated" : ""); };
  source.onerror = () => F.text("connection", "no connection; trying again");
  F.page = { runs: runs, draw: draw };
})(Flegel);
