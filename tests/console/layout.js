// What is wrong with the layout of a page, as lines of text: [] = nothing. For tests/console/test_console_layout.py.
() => {
  const wrong = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) wrong.push(`the page is ${document.documentElement.scrollWidth} px wide`);
  const seen = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const name = (element) => `${element.tagName.toLowerCase()}.${element.className} ${element.textContent.trim().slice(0, 40)}`;
  // The part of `rect` that the boxes which scroll around `element` show now.
  function shown(rect, element) {
    let { left, top, right, bottom } = rect;
    for (let box = element.parentElement; box; box = box.parentElement) {
      if (getComputedStyle(box).overflowX === "visible") continue;
      const edge = box.getBoundingClientRect();
      [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
    }
    return { left, top, right, bottom };
  }
  const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !seen(element) || element.closest("svg title, option, script, .hidden, .skip")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const part = shown(rect, element);
      if (part.right > 0 && part.right - part.left > 1 && part.bottom - part.top > 1) texts.push({ ...part, element, node });
    }
    for (const rect of range.getClientRects()) {
      const scrolls = element.closest(".scroll, pre, textarea");
      if (!scrolls && (rect.right > width + 1 || (rect.left < -1 && rect.right > 0))) wrong.push(`outside of the page: ${name(element)}`);
    }
  }
  // A column that stays in place while others scroll below it has a background: it covers them.
  const covers = (element) => { const cell = element.closest("th, td"); return cell && getComputedStyle(cell).position === "sticky"; };
  texts.sort((one, other) => one.top - other.top);
  texts.forEach((one, at) => {
    for (let next = at + 1; next < texts.length && texts[next].top < one.bottom - 2; next++) {
      const other = texts[next];
      if (other.node === one.node || covers(one.element) !== covers(other.element)) continue;
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - other.top;
      if (across > 2 && down > 2) wrong.push(`${name(one.element)} overlaps ${name(other.element)}`);
    }
  });
  for (const cell of document.querySelectorAll("th.number, td.number")) {
    if (cell.getBoundingClientRect().right < 0) continue;  // a head for readers of the page by ear
    if (!seen(cell)) { wrong.push(`a number is hidden: ${name(cell)}`); continue; }
    if (cell.scrollWidth > cell.clientWidth + 1) wrong.push(`a number is cut: ${name(cell)}`);
    const range = document.createRange();
    range.selectNodeContents(cell);
    if (cell.tagName === "TD" && new Set([...range.getClientRects()].filter((each) => each.width > 1).map((each) => Math.round(each.top / 4))).size > 1) wrong.push(`a number is broken into lines: ${name(cell)}`);
    const rect = cell.getBoundingClientRect(), box = cell.closest(".scroll");
    const edge = box ? box.getBoundingClientRect().left + box.scrollWidth - box.scrollLeft : width;
    if (rect.right > edge + 1) wrong.push(`a number cannot be reached: ${name(cell)}`);
    if (width >= 1000 && box && rect.right > box.getBoundingClientRect().right + 1) wrong.push(`a number is pushed off: ${name(cell)}`);
  }
  for (const cell of document.querySelectorAll("tbody th, tbody td")) {
    const lines = cell.getBoundingClientRect().height / 21;
    if (lines > 24) wrong.push(`a row of ${Math.round(lines)} lines: ${name(cell)}`);
  }
  return [...new Set(wrong)].slice(0, 12);
}
