// Draws the rates of the broker, of a queue or of a topic: first the history that the master keeps, then what the page
// fetches while it is visible. It also greys figures that have grown old. Every page works without it.
"use strict";
// The key / leads to the search.
document.addEventListener("keydown", (event) => {
  const field = document.getElementById("find");
  if (event.key !== "/" || !field || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
  field.select();
});
(() => {
  const STALE_S = 6;
  const note = document.getElementById("stale");
  let fresh = Date.now();
  document.body.addEventListener("htmx:afterOnLoad", () => { fresh = Date.now(); });
  setInterval(() => {
    const live = document.getElementById("live"), age = Math.round((Date.now() - fresh) / 1000);
    if (!live || !note || document.visibilityState !== "visible") { fresh = live ? fresh : Date.now(); return; }
    const isStale = age >= STALE_S;
    live.classList.toggle("stale", isStale);
    note.hidden = !isStale;
    if (isStale) note.textContent = `The console does not answer: these figures are ${age} s old.`;
  }, 1000);
})();
(() => {
  const box = document.getElementById("plot");
  if (!box || typeof uPlot === "undefined") return;
  const EVERY_MS = 2000, MINUTE_MS = 60000, HEIGHT = 190, GREY = "#80808055", NOT_MASTER = 503;
  const soft = () => getComputedStyle(document.documentElement).getPropertyValue("--soft");  // of the theme of now
  const SPANS = { minutes: 600, hour: 3600, day: 86400 };  // seconds that are shown
  const told = document.getElementById("rates");
  const { queue, topic } = box.dataset;
  const names = topic ? ["in"] : ["in", "out"];
  const query = queue ? `queue=${encodeURIComponent(queue)}` : topic ? `topic=${encodeURIComponent(topic)}` : "";
  let data = [[], ...names.map(() => [])], span = "minutes", before = null, isLooking = false;
  const text = (s) => s < 100 ? `${Math.round(s)} s` : s < 6000 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
  // Of a queue: does it drain?
  function outlook(seen, [into, out]) {
    if (!queue || !seen.messages) return "";
    if (out > into) return `: empty in about ${text(seen.messages / (out - into))}, if it goes on like this`;
    return into > out ? ": it grows" : out ? ": it stays as it is" : ": nothing leaves it";
  }
  const utc = (s, seconds) => new Date(s * 1000).toISOString().slice(11, seconds ? 19 : 16);
  const range = () => { const end = data[0].at(-1) ?? Date.now() / 1000; return [end - SPANS[span], end]; };
  const seen_ = () => { const [from] = range(); return data.slice(1).flatMap((each) => each.filter((value, at) => value !== null && data[0][at] >= from)); };
  const plot = new uPlot({
    width: box.clientWidth, height: HEIGHT, legend: { live: false },
    scales: { x: { range }, y: { range: () => [0, 1.1 * Math.max(1, ...seen_())] } },
    axes: [{ stroke: soft, space: 90, grid: { stroke: GREY, width: 1 }, ticks: { stroke: GREY },
             values: (_, at, __, ___, every) => at.map((s) => utc(s, every < 60)) },
           { stroke: soft, size: 60, grid: { stroke: GREY, width: 1 }, ticks: { stroke: GREY } }],
    series: [{}, { label: "in per second", stroke: "#4285f4", width: 2 },
             ...topic ? [] : [{ label: "out per second", stroke: "#d07000", width: 2, dash: [6, 4] }]],
  }, data, box);
  function show() {
    plot.setData(data);
    box.dataset.points = data[0].length;
  }
  addEventListener("resize", () => plot.setSize({ width: box.clientWidth, height: HEIGHT }));
  async function fetched(url) {
    const answer = await fetch(url, { headers: { accept: "application/json" } });
    if (!answer.ok) throw Object.assign(new Error(url), { status: answer.status });
    return answer.json();
  }
  // The history: what was before this page was opened.
  async function load() {
    const wanted = span;
    const found = await fetched(`/rates.json?${query}&span=${wanted === "day" ? "day" : "hour"}`);
    if (wanted !== span) return;
    const count = found.in.length, at = found.in.map((_, number) => found.until_ms / 1000 - (count - 1 - number) * found.every_s);
    const first = names.reduce((least, name) => Math.min(least, found[name].findIndex((value) => value !== null) + 1 || count + 1), count + 1) - 1;
    const kept = data[0].findIndex((s) => s > found.until_ms / 1000);
    const later = (each) => span === "day" || kept < 0 ? [] : each.slice(kept);
    data = [[...at.slice(first), ...later(data[0])], ...names.map((name, number) => [...found[name].slice(first), ...later(data[number + 1])])];
    show();
    const newest = names.map((name) => found[name].at(-1));
    if (told.textContent === "measuring" && newest.every((value) => value !== null)) say(newest);
  }
  const say = (rates, more = "") => {
    const [into, out] = rates.map((rate) => rate.toFixed(1));
    told.textContent = topic ? `${into} messages in per second` : `${into} messages in, ${out} out per second${more}`;
  };
  const trouble = (error) => {
    before = null;
    told.textContent = error.status === NOT_MASTER ? "this broker is not the master, which alone has rates" : "no answer from the broker";
  };
  async function look() {
    if (isLooking || document.visibilityState !== "visible") return;
    isLooking = true;
    try { await draw(); } catch (error) { trouble(error); } finally { isLooking = false; }
  }
  async function draw() {
    const seen = { at: Date.now() / 1000, ...(await fetched(`/figures.json?${query}`)) };
    if (before && seen.seen_s === before.seen_s) return;
    if (before && seen.epoch === before.epoch && seen.seen_s > before.seen_s) {
      const seconds = seen.seen_s - before.seen_s;
      const rates = (topic ? ["enqueued"] : ["enqueued", "dequeued"]).map((name) => Math.max(0, (seen[name] - before[name]) / seconds));
      if (span !== "day") {
        [seen.at, ...rates].forEach((value, at) => data[at].push(value));
        while (data[0].length && data[0][0] < seen.at - SPANS.hour) data.forEach((each) => each.shift());
        show();
      }
      say(rates, topic ? "" : outlook(seen, rates));
    }
    before = seen;
  }
  document.querySelectorAll("[data-span]").forEach((button) => button.addEventListener("click", () => {
    span = button.dataset.span;
    document.querySelectorAll("[data-span]").forEach((each) => each.setAttribute("aria-pressed", each === button));
    load().catch(trouble);
  }));
  load().catch(trouble);
  look();
  setInterval(look, EVERY_MS);
  setInterval(() => { if (span === "day" && document.visibilityState === "visible") load().catch(trouble); }, MINUTE_MS);
})();
