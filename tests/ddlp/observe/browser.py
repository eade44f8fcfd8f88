"""Headless Chromium: opens one of our pages at a width and in a colour scheme, and says what is wrong with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.needs import which

# Finds what a person could not read or see. Opens everything that is folded up first.
_LOOK = r"""
const found = [];
const name = e => e.tagName.toLowerCase() + (e.getAttribute('class') ? '.' + e.getAttribute('class').trim() : '');
document.querySelectorAll('details').forEach(d => d.open = true);

// -- nothing wider than the page
if (document.scrollingElement.scrollWidth > innerWidth) found.push('wide: the page scrolls sideways');
for (const e of document.body.querySelectorAll('*')) {
  const box = e.getBoundingClientRect(), scroller = e.closest('.scroll');
  if (box.width && (box.right > innerWidth + 0.5 || box.left < -0.5) && (!scroller || scroller === e))
    found.push(`wide: ${name(e)} reaches from ${box.left} to ${box.right}`);
}

// -- colours, as painted: [r, g, b] over what is below
const parse = text => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const over = (top, below) => [0, 1, 2].map(k => top[k] * top[3] + below[k] * (1 - top[3]));
function ground(e) {
  const layers = [];
  for (let at = e; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    layers.push(colour);
    if (colour[3] === 1) break;
  }
  return layers.reverse().reduce((below, colour) => over(colour, below), [255, 255, 255]);
}
function luminance(rgb) {
  const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(a, b) {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
}
function opacity(e) { let all = 1; for (; e; e = e.parentElement) all *= getComputedStyle(e).opacity; return all; }

// -- text
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
while (texts.nextNode()) {
  const node = texts.currentNode, e = node.parentElement, style = getComputedStyle(e);
  const range = document.createRange();
  range.selectNodeContents(node);
  if (!node.data.trim() || !range.getClientRects().length) continue;
  seen++;
  const text = `${name(e)} "${node.data.trim().slice(0, 40)}"`;
  if (parseFloat(style.fontSize) < 11) found.push(`small: ${text} has ${style.fontSize}`);
  const below = ground(e), colour = parse(style.color);
  colour[3] *= opacity(e);
  const ratio = contrast(over(colour, below), below);
  if (!(ratio >= 4.5)) found.push(`faint: ${text} has a contrast of ${ratio.toFixed(2)}`);
}
if (seen < 30) found.push(`empty: the page has ${seen} texts`);

// -- plots
for (const figure of document.querySelectorAll('figure')) {
  const plot = figure.dataset.plot, pictures = figure.querySelectorAll('img');
  if (pictures.length !== 1) { found.push(`undrawn: ${plot} has ${pictures.length} pictures`); continue; }
  const picture = pictures[0], box = picture.getBoundingClientRect();
  if (!(picture.complete && picture.naturalWidth >= 1000)) found.push(`undrawn: ${plot} is no picture`);
  if (!(box.width >= 600 && box.height >= 40)) found.push(`undrawn: ${plot} is ${box.width} x ${box.height}`);
  for (const [what, there] of Object.entries({
    'a title': figure.querySelector('h3')?.textContent.trim(), 'a text': picture.alt.length > 20,
    'a table': figure.querySelectorAll('table tbody tr').length,
  })) if (!there) found.push(`unexplained: ${plot} lacks ${what}`);
}
return found;
"""


class Browser:
    """One headless Chromium without network. ``directory`` is for its files; it does not remove all of them."""

    def __init__(self, directory: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(which("chromium"))
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
            "--disable-background-networking", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
        ):  # fmt: skip
            options.add_argument(argument)
        environment = {**os.environ, "TMPDIR": str(directory), "SE_OFFLINE": "true"}  # selenium downloads no driver
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver: Any = webdriver.Chrome(options=options, service=Service(str(which("chromedriver")), env=environment))

    def end(self) -> None:
        """Close it."""
        self.driver.quit()

    def look(self, page: Path, width: int, scheme: str) -> list[str]:
        """Open a page and return what is wrong with it. Each text begins with the fault's kind."""
        self._logs()
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(page.as_uri())
        assert self.driver.execute_script("return [innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]") == [
            width, scheme == "dark",
        ]  # fmt: skip
        found: list[str] = self.driver.execute_script(_LOOK)
        return found + self._logs(page.as_uri())

    def _logs(self, own: str = "") -> list[str]:
        """What the console has logged, and what was requested beside the page itself, since the last call."""
        found = [f"console: {entry['level']} {entry['message']}" for entry in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                found += [f"request: {url}"] if url != own and not url.startswith("data:") else []
        return found
