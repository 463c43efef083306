// Draws the rates of the broker, of a queue or of a topic, from the figures that the page fetches while it is visible. Nothing else needs it.
"use strict";
(() => {
  const box = document.getElementById("plot");
  if (!box || typeof uPlot === "undefined") return;
  const data = box.dataset.topic ? [[], []] : [[], [], []], MAX = 900, EVERY_MS = 2000, HEIGHT = 170;
  const now = () => [Date.now() / 1000 - 120, Date.now() / 1000];
  let before = null, isLooking = false;
  const told = document.getElementById("rates");
  const { queue, topic } = box.dataset;
  const url = "/figures.json" + (queue ? `?queue=${encodeURIComponent(queue)}` : topic ? `?topic=${encodeURIComponent(topic)}` : "");
  const span = (s) => s < 100 ? `${Math.round(s)} s` : s < 6000 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
  // Of a queue: does it drain?
  function outlook(seen, [into, out]) {
    if (!queue || !seen.messages) return "";
    if (out > into) return `: empty in about ${span(seen.messages / (out - into))}, if it goes on like this`;
    return into > out ? ": it grows" : out ? ": it stays as it is" : ": nothing leaves it";
  }
  const plot = new uPlot({
    width: box.clientWidth, height: HEIGHT, legend: { live: false },
    scales: { x: { range: () => data[0].length ? [Math.min(data[0][0], data[0].at(-1) - 120), data[0].at(-1)] : now() },
              y: { range: () => [0, 1.1 * Math.max(1, ...data.slice(1).flat())] } },
    axes: [{ stroke: "#808080", values: (_, at) => at.map((s) => new Date(s * 1000).toISOString().slice(11, 19)) },
           { stroke: "#808080" }],
    series: [{}, { label: "in per second", stroke: "#0b57d0", width: 2 },
             ...topic ? [] : [{ label: "out per second", stroke: "#b06000", width: 2, dash: [6, 4] }]],
  }, data, box);
  addEventListener("resize", () => plot.setSize({ width: box.clientWidth, height: HEIGHT }));
  async function look() {
    if (isLooking || document.visibilityState !== "visible") return;
    isLooking = true;
    try { await draw(); } finally { isLooking = false; }
  }
  async function draw() {
    let seen;
    try {
      const answer = await fetch(url, { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(answer.status);
      seen = { at: Date.now() / 1000, ...(await answer.json()) };
    } catch (error) {
      before = null;
      told.textContent = "no answer from the broker";
      return;
    }
    if (before && seen.seen_s === before.seen_s) return;
    if (before && seen.epoch === before.epoch && seen.seen_s > before.seen_s) {
      const seconds = seen.seen_s - before.seen_s;
      const counted = topic ? ["enqueued"] : ["enqueued", "dequeued"];
      const rates = counted.map((name) => Math.max(0, (seen[name] - before[name]) / seconds));
      [seen.at, ...rates].forEach((value, at) => { data[at].push(value); if (data[at].length > MAX) data[at].shift(); });
      plot.setData(data);
      box.dataset.points = data[0].length;
      const [into, out] = rates.map((rate) => rate.toFixed(1));
      told.textContent = topic ? `${into} messages in per second` : `${into} messages in, ${out} out per second${outlook(seen, rates)}`;
    }
    before = seen;
  }
  look();
  setInterval(look, EVERY_MS);
})();
