(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const data = JSON.parse(document.getElementById("charts").textContent);
  const charts = [...document.querySelectorAll("[data-chart]")].map((figure) => ({
    figure,
    svg: figure.querySelector("svg"),
    marks: [...figure.querySelectorAll(".mark")],
    line: figure.querySelector(".cursor line"),
    data: data[figure.dataset.chart],
    at: -1,
  })).filter((chart) => chart.data && chart.data.x.length);

  const place = (x, y) => {
    tip.classList.add("shown");
    const box = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(x + 14, document.documentElement.clientWidth - box.width - 8));
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${Math.max(8, y - box.height - 12) + window.scrollY}px`;
  };
  const hide = () => tip.classList.remove("shown");

  const move = (chart, index) => {
    const { x, series } = chart.data;
    chart.at = index;
    chart.line.setAttribute("x1", x[index]);
    chart.line.setAttribute("x2", x[index]);
    series.forEach((one, number) => {
      const y = one.y[index];
      chart.marks[number].setAttribute("cx", y === null ? -20 : x[index]);
      chart.marks[number].setAttribute("cy", y === null ? -20 : y);
    });
    chart.figure.classList.add("active");
  };

  // Of one run, whose charts begin with a metric each, the values of all charts; of several runs, whose charts all begin
  // with the first of them, those of this chart.
  const told = (chart, index) => {
    const round = chart.data.label[index];
    const firsts = new Set(charts.map((other) => other.data.series[0].name));
    const shown = firsts.size === charts.length ? charts : [chart];
    return shown.flatMap((other) => {
      const at = other.data.label.indexOf(round);
      return at < 0 ? [] : other.data.series.map((one) => ({ one, at }));
    });
  };

  const tell = (chart, index) => {
    tip.replaceChildren();
    const head = document.createElement("strong");
    head.textContent = chart.data.label[index];
    tip.append(head);
    told(chart, index).forEach(({ one, at }) => {
      if (!one.text[at]) return;
      const row = document.createElement("span");
      const key = document.createElement("i");
      key.className = `key c${one.colour}`;
      row.append(key, `${one.name} ${one.text[at]}`);
      tip.append(row);
    });
    const box = chart.svg.getBoundingClientRect();
    const scale = box.width / chart.svg.viewBox.baseVal.width;
    const ys = chart.data.series.map((one) => one.y[index]).filter((y) => y !== null);
    place(box.left + chart.data.x[index] * scale, box.top + Math.min(...ys, 200) * scale);
  };

  const show = (chart, index) => {
    const round = chart.data.label[index];
    charts.forEach((other) => {
      const same = other === chart ? index : other.data.label.indexOf(round);
      if (same >= 0) move(other, same);
    });
    tell(chart, index);
  };
  const leave = () => {
    charts.forEach((chart) => chart.figure.classList.remove("active"));
    hide();
  };

  charts.forEach((chart) => {
    const last = chart.data.x.length - 1;
    chart.svg.addEventListener("pointermove", (event) => {
      const box = chart.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * chart.svg.viewBox.baseVal.width / box.width;
      let nearest = 0;
      chart.data.x.forEach((at, index) => {
        if (Math.abs(at - x) < Math.abs(chart.data.x[nearest] - x)) nearest = index;
      });
      show(chart, nearest);
    });
    chart.svg.addEventListener("pointerleave", leave);
    chart.figure.addEventListener("focus", () => show(chart, last));
    chart.figure.addEventListener("blur", leave);
    chart.figure.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") return leave();
      if (!(event.key in steps)) return;
      event.preventDefault();
      show(chart, Math.max(0, Math.min(last, (chart.at < 0 ? last : chart.at) + steps[event.key])));
    });
  });

  document.querySelectorAll("[data-tip]").forEach((spot) => {
    const say = () => {
      tip.textContent = spot.dataset.tip;
      const box = spot.querySelector("circle").getBoundingClientRect();
      place(box.left + box.width / 2, box.top);
    };
    spot.addEventListener("pointerenter", say);
    spot.addEventListener("focus", say);
    spot.addEventListener("pointerleave", hide);
    spot.addEventListener("blur", hide);
  });

  // Everything is printed, also what is folded on the screen.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => { part.open = true; });
  });
  window.addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));
})();
