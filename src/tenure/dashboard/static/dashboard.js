// What the pages gain with JavaScript: live parts, dialogs, keys, plots. Everything can be read
// without it. No data becomes HTML here: the server renders, htmx swaps.
"use strict";

(() => {
  const KEY_WITHIN_MS = 1500;

  // --- live parts: asked for again while the tab is visible and nobody works in them

  const isBusy = (live) => {
    if (document.hidden || document.getElementById("dialog").open) return true;
    if (live.querySelector("input:checked")) return true;
    const active = document.activeElement;
    return live.contains(active) && active.matches("input, select, textarea");
  };

  const refresh = async () => {
    const live = document.getElementById("live");
    if (!live || isBusy(live)) return;
    await htmx.ajax("GET", location.pathname + location.search, {
      target: live,
      swap: "outerHTML",
      source: live,
    });
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

  let pressedG = 0;

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
    }
  });

  document.addEventListener("DOMContentLoaded", keepLive);
})();
