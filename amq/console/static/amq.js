// Draws the rates of the broker, or of a queue, from the figures that the page fetches while it is visible. Nothing else needs it.
"use strict";
(() => {
  const box = document.getElementById("plot");
  if (!box || typeof uPlot === "undefined") return;
  const data = [[], [], []], MAX = 900, EVERY_MS = 2000;
  let before = null;
  const told = document.getElementById("rates");
  const url = "/figures.json" + (box.dataset.queue ? `?queue=${encodeURIComponent(box.dataset.queue)}` : "");
  const span = (s) => s < 100 ? `${Math.round(s)} s` : s < 6000 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
  // Of a queue: does it drain?
  function outlook(now, [into, out]) {
    if (!box.dataset.queue || !now.messages) return "";
    if (out > into) return `: empty in about ${span(now.messages / (out - into))}, if it goes on like this`;
    return into > out ? ": it grows" : out ? ": it stays as it is" : ": nothing leaves it";
  }
  const plot = new uPlot({
    width: box.clientWidth, height: 220,
    scales: { x: { range: (_, low, high) => [Math.min(low, high - 120), high] } },
    axes: [{ stroke: "#808080" }, { stroke: "#808080" }],
    series: [{}, { label: "in per second", stroke: "#0b57d0", width: 2 },
             { label: "out per second", stroke: "#b06000", width: 2, dash: [6, 4] }],
  }, data, box);
  addEventListener("resize", () => plot.setSize({ width: box.clientWidth, height: 220 }));
  async function look() {
    if (document.visibilityState !== "visible") return;
    let now;
    try {
      const answer = await fetch(url, { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(answer.status);
      now = { at: Date.now() / 1000, ...(await answer.json()) };
    } catch (error) {
      before = null;
      told.textContent = "no answer from the broker";
      return;
    }
    if (before && now.epoch === before.epoch) {
      const seconds = now.at - before.at;
      const rates = [now.enqueued - before.enqueued, now.dequeued - before.dequeued].map((n) => Math.max(0, n / seconds));
      [now.at, ...rates].forEach((value, at) => { data[at].push(value); if (data[at].length > MAX) data[at].shift(); });
      plot.setData(data);
      told.textContent = `${rates[0].toFixed(1)} messages in, ${rates[1].toFixed(1)} out per second${outlook(now, rates)}`;
    }
    before = now;
  }
  look();
  setInterval(look, EVERY_MS);
})();
