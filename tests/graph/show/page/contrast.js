// Text and what lies behind it, as WCAG 2 compares them; below 4.5 (3 for large text) it is hard to read.
() => {
  const parse = (text) => { const found = text.match(/[\d.]+/g).map(Number); return found.length < 4 ? [...found, 1] : found; };
  const light = (rgb) => { const [r, g, b] = rgb.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (el) => { for (; el; el = el.parentElement) { const c = parse(getComputedStyle(el).backgroundColor); if (c[3] > 0.9) return c; } return [255, 255, 255, 1]; };
  const wrong = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const el = walk.currentNode.parentElement, style = getComputedStyle(el);
    if (!walk.currentNode.textContent.trim() || !el.checkVisibility() || el.closest("script,style,noscript,[aria-label=tip],.skip")) continue;
    const svg = el.closest("svg text");
    const ink = parse(svg ? style.fill : style.color);
    const [a, b] = [light(ink.slice(0, 3)), light(behind(el).slice(0, 3))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) wrong.push(`${el.tagName} ${walk.currentNode.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return wrong;
}
