"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const pinned = new Set();
  let pointed = null;

  // Sort numbers by value and text alphabetically; missing values stay last in both directions.
  function compare(a, b, sign) {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const [x, y] = [Number(a), Number(b)];
    return sign * (Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y);
  }

  function sortBy(head) {
    const table = head.closest("table");
    const heads = all("th[aria-sort]", table);
    const descending = { ascending: true, descending: false }[head.ariaSort] ?? head.dataset.first === "descending";
    const column = heads.indexOf(head);
    heads.forEach((one) => { one.ariaSort = "none"; });
    head.ariaSort = descending ? "descending" : "ascending";
    const rows = all("tbody tr", table);
    const value = (row) => row.cells[column].dataset.value;
    rows.sort((a, b) => compare(value(a), value(b), descending ? -1 : 1));
    table.tBodies[0].append(...rows);
  }

  function filter() {
    const words = document.getElementById("filter").value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const need = document.getElementById("need").value;
    const rows = all(".results tbody tr");
    const shown = new Map();
    rows.forEach((row) => {
      const label = row.cells[0].dataset.value.toLowerCase();
      const named = !words.length || words.some((word) => label.includes(word));
      row.hidden = !(named && (!need || row.dataset.need === need));
      shown.set(row.dataset.entry, !row.hidden);
    });
    all("[data-entry]").forEach((mark) => mark.classList.toggle("off", !shown.get(mark.dataset.entry)));
    const count = [...shown.values()].filter(Boolean).length;
    document.getElementById("count").textContent = `${count} of ${rows.length} rows shown`;
  }

  // Highlight selected and hovered entries in the figures of their group.
  function light() {
    all("section").forEach((section) => {
      const chosen = new Set([...pinned, pointed].filter((id) => id && section.querySelector(`tr[data-entry="${id}"]`)));
      all("figure [data-entry]", section).forEach((mark) => {
        const own = chosen.has(mark.dataset.entry);
        mark.classList.toggle("faded", chosen.size > 0 && !own);
        mark.classList.toggle("lit", own && mark.classList.contains("other"));
      });
    });
  }

  // Say that a table goes on, as long as it does.
  function hint() {
    all(".wide").forEach((box) => {
      const inner = box.firstElementChild;
      box.classList.toggle("more", inner.scrollLeft + inner.clientWidth < inner.scrollWidth - 1);
    });
  }

  all("th[aria-sort] button").forEach((button) => button.addEventListener("click", () => sortBy(button.closest("th"))));
  all(".results tbody tr").forEach((row) => {
    const id = row.dataset.entry;
    const button = row.querySelector("button.pin");
    button.addEventListener("click", () => {
      const on = !pinned.has(id);
      pinned[on ? "add" : "delete"](id);
      button.setAttribute("aria-pressed", on);
      light();
    });
    row.addEventListener("pointerenter", () => { pointed = id; light(); });
    row.addEventListener("pointerleave", () => { pointed = null; light(); });
  });
  all("[data-part]").forEach((box) => box.addEventListener("change", () => {
    all(`.p-${box.dataset.part}`).forEach((cell) => cell.classList.toggle("off", !box.checked));
    hint();
  }));
  document.getElementById("filter").addEventListener("input", filter);
  document.getElementById("need").addEventListener("change", filter);
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  all(".scroll").forEach((box) => box.addEventListener("scroll", hint));
  all("details").forEach((box) => box.addEventListener("toggle", hint));
  window.addEventListener("resize", hint);
  filter();
  hint();
})();
