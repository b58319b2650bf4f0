// What the pages gain with JavaScript: live parts, dialogs, keys, plots. Everything can be read
// without it. No data becomes HTML here: the server renders, htmx swaps.
"use strict";

(() => {
  const KEY_WITHIN_MS = 1500;

  // --- live parts: asked for again while the tab is visible and the visitor does not work in them

  const isBusy = (live) => {
    if (document.hidden || document.getElementById("dialog").open) return true;
    if (live.querySelector("input:checked")) return true;
    const selected = getSelection();
    if (!selected.isCollapsed && live.contains(selected.anchorNode)) return true;
    const active = document.activeElement;
    return live.contains(active) && active.matches("input, select, textarea");
  };

  // The same link or summary in the part that replaces this one, or null.
  const twinOf = (focused, live) => {
    if (!live.contains(focused)) return () => null;
    const href = focused.getAttribute("href");
    const alike = `${focused.localName}${href === null ? "" : `[href="${CSS.escape(href)}"]`}`;
    const place = [...live.querySelectorAll(alike)].indexOf(focused);
    return () => document.getElementById("live")?.querySelectorAll(alike)[place] ?? null;
  };

  const refresh = async () => {
    const live = document.getElementById("live");
    if (!live || isBusy(live)) return;
    const twin = twinOf(document.activeElement, live);
    const opened = [...live.querySelectorAll("details[open][id]")].map((each) => each.id);
    await htmx.ajax("GET", location.pathname + location.search, {
      target: live,
      swap: "outerHTML",
      source: live,
    });
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    if (document.activeElement === document.body) twin()?.focus({ preventScroll: true });
    // It has ended: the rest of the page, such as its buttons, is another one now.
    if (document.getElementById("live")?.dataset.live === "0") location.reload();
  };

  const keepLive = () => {
    const live = document.getElementById("live");
    const everyMs = 1000 * Number(live ? live.dataset.live : 0);
    if (!everyMs) return;
    let isAsking = false;
    setInterval(async () => {
      if (isAsking) return;
      isAsking = true;
      try {
        await refresh();
      } finally {
        isAsking = false;
      }
    }, everyMs);
    document.addEventListener("visibilitychange", refresh);
  };

  // --- dialogs: the confirmation page of an action, opened over this one

  const openDialog = async (href) => {
    const dialog = document.getElementById("dialog");
    await htmx.ajax("GET", href, { target: dialog, swap: "innerHTML" });
    if (!dialog.querySelector("form")) {
      location.assign(href); // signed out meanwhile, or refused: show it as a page
      return;
    }
    dialog.showModal();
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-dialog]");
    const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0;
    if (link && isPlain) {
      event.preventDefault();
      openDialog(link.getAttribute("href"));
      return;
    }
    const dialog = document.getElementById("dialog");
    const isClose = event.target.closest("[data-close]") && dialog.contains(event.target);
    if (isClose || event.target === dialog) {
      event.preventDefault();
      dialog.close();
    }
  });

  document.addEventListener("submit", (event) => {
    if (event.target.id !== "bulk" || !event.submitter) return;
    const sent = new URLSearchParams(new FormData(event.target));
    if (!sent.has("target")) return; // the page says that nothing is chosen
    event.preventDefault();
    openDialog(`${event.submitter.getAttribute("formaction")}?${sent}`);
  });

  // --- rows that are ticked

  const countTicked = () => {
    const label = document.querySelector("[data-bulk-count]");
    if (!label) return;
    label.dataset.idle ??= label.textContent;
    const boxes = document.querySelectorAll('input[form="bulk"][name="target"]');
    const ticked = [...boxes].filter((box) => box.checked).length;
    label.textContent = ticked ? `${ticked} selected` : label.dataset.idle;
    const all = document.querySelector("input[data-tick-all]");
    if (all) {
      all.checked = ticked > 0 && ticked === boxes.length;
      all.indeterminate = ticked > 0 && ticked < boxes.length;
    }
  };

  document.addEventListener("change", (event) => {
    if (event.target.matches("input[data-tick-all]")) {
      for (const box of document.querySelectorAll('input[form="bulk"][name="target"]')) {
        box.checked = event.target.checked;
      }
    }
    countTicked();
    if (event.target.matches("form[data-submit-on-change] *")) event.target.form.requestSubmit();
  });

  // --- keys

  let pressedG = -Infinity; // never yet: times count from the load of the page

  const ROW_LINKS = ".rows tbody th a";

  // Move the focus to the row after or before the focused one, or tick its box.
  const walkRows = (key) => {
    const links = [...document.querySelectorAll(ROW_LINKS)];
    const row = document.activeElement.closest(".rows tbody tr");
    if (key === "x") row?.querySelector('input[type="checkbox"]')?.click();
    if (key === "x" || !links.length) return;
    const at = row ? links.indexOf(row.querySelector("th a")) : -1;
    const next = key === "j" ? at + 1 : Math.max(0, at - 1);
    links[Math.min(next, links.length - 1)].focus();
  };

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, select, textarea, [contenteditable]");
    if (event.key === "Escape" && event.target.id === "search") event.target.blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.getElementById("dialog").open) return;
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("search")?.focus();
    } else if (event.key === "?") {
      location.assign("/help");
    } else if (event.key === "g") {
      pressedG = event.timeStamp;
    } else if (event.timeStamp - pressedG < KEY_WITHIN_MS && /^[a-z]$/.test(event.key)) {
      document.querySelector(`.menu a[data-key="${event.key}"]`)?.click();
    } else if (["j", "k", "x"].includes(event.key)) {
      walkRows(event.key);
    }
  });

  // --- plots: drawn from the tables below them, so that both always say the same

  const PLOT_HEIGHT = 180;
  const STYLES = {
    enqueued: ["--grey", [2, 3]],
    succeeded: ["--green", []],
    retried: ["--blue", [8, 4]],
    failed: ["--orange", [4, 3]],
    dead: ["--red", []],
    cancelled: ["--violet", [8, 3, 2, 3]],
    backlog: ["--blue", []],
  };
  const drawn = new Map();

  // Steps of an axis of jobs, which are whole: 1, 2, 5, 10, …
  const WHOLE_STEPS = Array.from({ length: 27 }, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));

  // How the border of a legend's marker shows the dashes of its line.
  const lineStyle = (head) => {
    const dash = head ? STYLES[head.style][1] : [];
    if (!dash.length) return "solid";
    return dash[0] <= 2 ? "dotted" : "dashed";
  };

  const colour = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  const readTable = (table) => {
    const heads = [...table.tHead.rows[0].cells].slice(1);
    const rows = [...table.tBodies[0].rows];
    const numbers = (cell) => Number(cell.textContent.replaceAll("\u202f", ""));
    return {
      heads: heads.map((cell) => ({ label: cell.textContent, style: cell.dataset.style })),
      data: [
        rows.map((row) => Date.parse(row.querySelector("time").dateTime) / 1000),
        ...heads.map((_, place) => rows.map((row) => numbers(row.cells[place + 1]))),
      ],
    };
  };

  const shown = (value, unit) =>
    value === null || value === undefined ? "" : `${Number(value.toPrecision(3))}${unit}`;

  const two = (number) => String(number).padStart(2, "0");
  const clock = (at) => `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
  const day = (at) => `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
  const DAY_S = 86400;

  const tick = (seconds, step_s) => {
    const at = new Date(seconds * 1000);
    return step_s >= DAY_S ? day(at).slice(5) : clock(at);
  };

  const seriesOf = ({ label, style }, unit) => {
    const [name, dash] = STYLES[style];
    const stroke = colour(name);
    const faint = stroke.replace("rgb(", "rgba(").replace(")", ", 0.12)");
    return {
      label,
      stroke,
      dash,
      width: 1.75,
      points: { show: false },
      fill: style === "backlog" ? faint : undefined,
      value: (_, value) => shown(value, unit),
    };
  };

  const optionsOf = (box, heads) => {
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    const moment = (_, at) => {
      const when = new Date(at * 1000);
      return at === null || at === undefined ? "" : `${day(when)} ${clock(when)}`;
    };
    return {
      width: box.clientWidth,
      height: PLOT_HEIGHT,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
      cursor: { y: false, sync: { key: "over-time" }, drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      legend: { markers: { width: 2, dash: (_, place) => lineStyle(heads[place - 1]) } },
      axes: [
        { ...axis, size: 26, values: (_, at, __, ___, step_s) => at.map((each) => tick(each, step_s)) },
        { ...axis, size: 44, incrs: box.dataset.unit ? undefined : WHOLE_STEPS },
      ],
      series: [
        { label: "UTC", value: moment },
        ...heads.map((head) => seriesOf(head, box.dataset.unit)),
      ],
    };
  };

  // Lines that are zero all the time would only cover the axis; the table has them.
  const withoutZeros = ({ heads, data }) => {
    const kept = heads.map((_, place) => place).filter((place) => data[place + 1].some((v) => v > 0));
    const places = kept.length ? kept : heads.map((_, place) => place).slice(0, 1);
    return {
      heads: places.map((place) => heads[place]),
      data: [data[0], ...places.map((place) => data[place + 1])],
    };
  };

  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const size = { width: target.clientWidth, height: PLOT_HEIGHT };
      if (size.width) drawn.get(target)?.setSize(size);
    }
  });

  const drawPlot = (box) => {
    const { heads, data } = withoutZeros(readTable(document.getElementById(box.dataset.plot)));
    const labels = heads.map((head) => head.label).join();
    const known = drawn.get(box);
    if (known && box.dataset.lines === labels) {
      known.setData(data);
      return;
    }
    known?.destroy();
    drawn.delete(box);
    if (!box.clientWidth || data[0].length < 2) return;
    box.dataset.lines = labels;
    drawn.set(box, new uPlot(optionsOf(box, heads), data, box));
    resized.observe(box);
  };

  const drawPlots = () => {
    for (const [box, plot] of drawn) {
      if (box.isConnected) continue;
      plot.destroy(); // else it keeps following the cursors of the others
      drawn.delete(box);
    }
    document.querySelectorAll("[data-plot]").forEach(drawPlot);
  };

  const redrawPlots = () => {
    for (const box of drawn.keys()) delete box.dataset.lines;
    drawPlots();
  };

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawPlots);
  document.addEventListener("htmx:afterSettle", drawPlots);
  // On a phone the menu is one line, wider than the window.
  const showCurrentPage = () => {
    const menu = document.querySelector(".menu");
    const current = menu?.querySelector("[aria-current]");
    if (!current) return;
    menu.scrollLeft = current.offsetLeft - (menu.clientWidth - current.offsetWidth) / 2;
  };

  document.addEventListener("DOMContentLoaded", () => {
    showCurrentPage();
    drawPlots();
    keepLive();
  });
})();
