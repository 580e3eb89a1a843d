// What the checks of accessibility.py judge: facts about the page in each frame, as JSON into #facts.
const factsOf = (frame) => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const all = (selector) => [...page.querySelectorAll(selector)];
  const text = (node) => (node?.textContent ?? "").trim().replace(/\s+/g, " ");
  const box = (node) => { const r = node.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const byIds = (ids) => (ids ?? "").split(/\s+/).filter(Boolean).map((id) => text(page.getElementById(id))).join(" ");
  const name = (node) => byIds(node.getAttribute("aria-labelledby")) || node.getAttribute("aria-label") || node.getAttribute("alt") || "";
  const background = (node) => {
    for (; node; node = node.parentElement) {
      const colour = view.getComputedStyle(node).backgroundColor;
      if (!/, 0\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const isClipped = (node) => !!node && (view.getComputedStyle(node).clipPath !== "none" && !node.closest("svg") || isClipped(node.parentElement));
  const texts = [];
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement, style = view.getComputedStyle(parent);
    if (!text(node) || !parent.checkVisibility() || isClipped(parent) || parent.closest("style, title, desc, [aria-hidden=true]")) continue;
    const plot = parent.closest("svg");
    const range = page.createRange();
    range.selectNodeContents(node);
    const scale = plot ? plot.getBoundingClientRect().width / plot.viewBox.baseVal.width : 1;
    texts.push({
      text: text(node), plot: plot ? text(plot.querySelector("title")) : "", edge: plot && box(plot), box: box(range),
      colour: plot ? style.fill : style.color, background: background(parent),
      size: parseFloat(style.fontSize) * scale, weight: parseInt(style.fontWeight),
    });
  }
  return {
    width: page.documentElement.clientWidth, scrollWidth: page.documentElement.scrollWidth,
    lang: page.documentElement.lang, title: page.title,
    viewport: page.querySelector("meta[name=viewport]")?.content ?? "",
    mains: all("main").length,
    headings: all("h1, h2, h3, h4, h5, h6").map((node) => [parseInt(node.tagName[1]), text(node)]),
    images: all("svg, img").map((node) => ({
      hidden: node.getAttribute("aria-hidden") === "true", role: node.getAttribute("role") ?? "", name: name(node),
      description: byIds(node.getAttribute("aria-describedby")), box: box(node),
    })),
    tables: all("table").map((node) => ({
      name: text(node.querySelector("caption")) || text(node.querySelector("thead")), columns: node.querySelectorAll("thead th").length,
      headers: [...node.querySelectorAll("th")].map((cell) => [text(cell), cell.getAttribute("scope")]),
      rows: [...node.querySelectorAll("tbody tr")].map((row) => [row.children.length, row.querySelectorAll("th").length]),
    })),
    regions: all("nav, section").map((node) => [node.tagName, name(node)]),
    links: all("a").map((node) => [text(node), node.getAttribute("href"), !!page.querySelector(node.getAttribute("href"))]),
    lists: all("ul, ol").map((node) => [...node.children].map((child) => child.tagName)),
    ids: all("[id]").map((node) => node.id),
    texts,
  };
};
addEventListener("load", () => {
  document.getElementById("facts").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(factsOf));
});
