// Tables and text. Whatever comes from a job, a user or a file is set as text, never as markup.
"use strict";
(function (F) {
  // head: [[title, is a number?]], rows: arrays of text; a row may carry nodes, which only this page has made.
  F.table = function (table, head, rows) {
    const shape = head.map((h) => h[0]).join("|");
    if (table.dataset.shape !== shape) {
      table.dataset.shape = shape; table.replaceChildren();
      const line = table.createTHead().insertRow();
      for (const [title, numeric] of head) { const cell = document.createElement("th"); cell.textContent = title; cell.scope = "col"; if (numeric) cell.className = "number"; line.append(cell); }
      table.createTBody();
    }
    const body = table.tBodies[0];
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((row, i) => {
      const line = body.rows[i] || body.insertRow();
      row.forEach((value, j) => {
        const cell = line.cells[j] || line.insertCell();
        if (head[j][1]) cell.className = "number";
        if (value instanceof Node) { if (cell.firstChild !== value) cell.replaceChildren(value); return; }
        const text = String(value);
        if (cell.textContent !== text) { cell.textContent = text; cell.title = text.length > 30 ? text.slice(0, 2000) : ""; cell.dir = head[j][1] ? "ltr" : "auto"; }
      });
    });
    table.dataset.rows = rows.length;
  };
  F.text = function (id, value, exact) {
    const element = document.getElementById(id), text = String(value);
    if (element.textContent !== text) element.textContent = text;
    if (exact !== undefined && exact !== null) element.dataset.value = String(exact);
  };

  const STATES = { i: "idle", t: "training", r: "waits" };
  const PAGE = 64;
  F.workers = function (run, worker, find) {
    const look = run.last, rows = [];
    if (worker) worker.id.forEach((id, i) => {
      const host = worker.host && look.hosts ? look.hosts[worker.host[i]] || "" : "";
      if (find && !(String(id) === find || host.includes(find))) return;
      if (rows.length >= PAGE) return;
      const all = Math.max(worker.compute[i] + worker.wait[i] + worker.respond[i], 1e-12);
      rows.push([id, host, F.count(worker.points[i]), F.number(worker.passes[i], 4), F.count(worker.rate[i]), F.percent(worker.compute[i] / all), F.percent(worker.wait[i] / all), F.percent(worker.respond[i] / all), worker.moving[i] ? (worker.moving[i] > 0 ? "+" : "−") + F.count(Math.abs(worker.moving[i])) : "", STATES[worker.state[i]] || ""]);
    });
    F.table(document.getElementById("workers"), [["worker", 1], ["host"], ["points", 1], ["passes", 1], ["points/s", 1], ["computing", 1], ["waiting", 1], ["answering", 1], ["moving", 1], ["state"]], rows);
    F.text("listed", worker && worker.id.length > rows.length ? rows.length + " of " + worker.id.length + " workers; find a number or a host" : "");
  };
  F.hosts = function (run, worker) {
    const found = new Map();
    if (worker && run.last.hosts) worker.id.forEach((_, i) => {
      const name = run.last.hosts[worker.host[i]] || "this host", h = found.get(name) || [0, 0, 0, 0, 0];
      h[0]++; h[1] += worker.points[i]; h[2] += worker.rate[i]; h[3] += worker.compute[i]; h[4] += worker.compute[i] + worker.wait[i] + worker.respond[i];
      found.set(name, h);
    });
    F.table(document.getElementById("hosts"), [["host"], ["workers", 1], ["points", 1], ["points/s", 1], ["computing", 1]], [...found].map(([name, h]) => [name, h[0], F.count(h[1]), F.count(h[2]), F.percent(h[3] / Math.max(h[4], 1e-12))]));
  };
  F.reasonsTable = function (run, cursor) {
    const shown = run.reasons.filter((r) => cursor === null || r.t <= cursor).slice(-200).reverse();
    F.table(document.getElementById("reasons"), [["at", 1], ["barrier", 1], ["interval", 1], ["reason"]], shown.map((r) => [F.seconds(r.t), r.it, F.seconds(r.eta), r.text]));
  };
  F.flowsTable = (flows) => F.table(document.getElementById("flows"), [["from", 1], ["to", 1], ["points", 1], ["bytes", 1], ["under way", 1]], flows.slice(0, 20).map((f) => [f[0], f[1], F.count(f[2]), F.count(f[3]), F.count(f[4])]));
  F.incidents = function (run, cursor) {
    const all = (run.last && run.last.incidents) || [];
    F.table(document.getElementById("incidents"), [["at", 1], ["worker", 1], ["what"], ["why"], ["until training", 1], ["visited anew", 1]], all.filter((i) => cursor === null || i.at <= cursor).map((i) => [F.seconds(i.at), i.worker >= 0 ? i.worker : "", i.kind, i.why, F.seconds(i.seconds), i.unvisited]));
  };
  F.sites = function (look) {
    const found = look && look.sites;
    document.getElementById("sites-part").hidden = !found; if (!found) return;
    const said = ["round " + found.round];
    if (look.waits_for) said.push("this group " + look.waits_for);
    if (found.why) said.push("the last round ended: " + found.why);
    said.push(F.count(found.bytes_sent) + " bytes sent, " + F.count(found.bytes_received) + " received");
    F.text("sites-told", said.join("; "));
    F.table(document.getElementById("sites"), [["group"], ["state"], ["round", 1], ["sent"], ["age", 1], ["workers", 1], ["waited for"]], found.sites.map((s) => [s.group, s.state + (s.silent ? ", silent" : ""), s.round, s.sent ? "yes" : "no", s.age === null ? "–" : s.age, s.workers, s.waited_for ? (s.silent ? "without a sign of life" : "has not contributed") : ""]));
  };
  F.log = function (run) {
    const box = document.getElementById("log"), text = run.lines.map((l) => (l[0] ? l[0] + " " : "") + l[1]).join("\n");
    if (box.textContent !== text) { const end = box.scrollTop + box.clientHeight >= box.scrollHeight - 4; box.textContent = text; if (end) box.scrollTop = box.scrollHeight; }
  };
})(Flegel);
