// Shows values under the pointer, and all places of a trial at once. Nothing is loaded or sent.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const short = value => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    return size >= 1e5 || 1e-3 > size ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  };
  const scale = text => {
    const [from, to, low, high, ratios] = text.split(" ").map(Number);
    return place => {
      const share = (place - from) / (to - from);
      return ratios ? low * Math.pow(high / low, share) : low + share * (high - low);
    };
  };
  const at = (path, x) => {
    let low = 0, high = path.getTotalLength();
    const first = path.getPointAtLength(low).x, last = path.getPointAtLength(high).x;
    if (first > x + 4 || x > last + 4) return null;
    for (let turn = 0; 14 > turn; turn++) {
      const middle = (low + high) / 2;
      if (x > path.getPointAtLength(middle).x) low = middle; else high = middle;
    }
    return path.getPointAtLength(low).y;
  };
  const put = (event, lines) => {
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const y = event.clientY + 18 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.max(4, y) + "px";
  };
  for (const svg of document.querySelectorAll("svg[data-x]")) {
    const across = scale(svg.dataset.x), up = scale(svg.dataset.y);
    const paths = [...svg.querySelectorAll("path[data-name]")];
    svg.addEventListener("pointermove", event => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const lines = [svg.dataset.across + " " + short(across(place.x)) + svg.dataset.acrossUnit];
      for (const path of paths) {
        const y = at(path, place.x);
        if (y !== null) lines.push(path.dataset.name + ": " + short(up(y)) + svg.dataset.unit);
      }
      if (lines.length > 1) put(event, lines); else tip.hidden = true;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
  const mark = (event, is_hot) => {
    const found = event.target.closest ? event.target.closest("[data-trial]") : null;
    if (!found) return;
    for (const one of document.querySelectorAll("[data-trial='" + found.dataset.trial + "']")) one.classList.toggle("hot", is_hot);
  };
  document.addEventListener("pointerover", event => mark(event, true));
  document.addEventListener("pointerout", event => mark(event, false));
})();
