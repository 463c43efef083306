// Draws the rates of the overview, from the figures that the page fetches while it is visible. Nothing else needs it.
"use strict";
(() => {
  const box = document.getElementById("plot");
  if (!box || typeof uPlot === "undefined") return;
  const data = [[], [], []], MAX = 900, EVERY_MS = 2000;
  let before = null;
  const told = document.getElementById("rates");
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
      const answer = await fetch("/figures.json", { headers: { accept: "application/json" } });
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
      told.textContent = `${rates[0].toFixed(1)} messages in, ${rates[1].toFixed(1)} out per second`;
    }
    before = now;
  }
  look();
  setInterval(look, EVERY_MS);
})();
