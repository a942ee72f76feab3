// Chromium without a way to anything but this machine, and what every page of ours must be.
import { mkdtempSync, rmSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { same } from './checks.mjs';

/** Starts Chromium with a profile of its own, and further arguments; `finish` ends it and removes the profile. */
export async function startBrowser(executablePath, further = []) {
  const profile = mkdtempSync(join(tmpdir(), 'throng-chromium-'));
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath,
    headless: true,
    args: [
      '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync',
      // Everything but the server under test stays unreachable.
      '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1',
      ...further,
    ],
  });
  const finish = async () => {
    await browser.close();
    rmSync(profile, { recursive: true, force: true });
  };
  return { browser, finish };
}

/** A tab with this page; what the page complains of is kept in `complaints`. */
export async function openTab(browser, url) {
  const page = await browser.newPage();
  page.complaints = [];
  page.on('pageerror', (error) => page.complaints.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error') page.complaints.push(message.text());
  });
  await page.goto(url);
  return page;
}

/**
 * Throws unless the page has no fault that axe finds and nothing spills over, light and dark, from 320 to 2,560
 * pixels. `fill` runs in the page before it is measured: it writes the longest values that may come.
 */
export async function isAccessible(page, fill) {
  const rules = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  await page.evaluate(rules);
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    for (const width of [320, 480, 768, 1280, 2560]) {
      await page.setViewportSize({ width, height: 800 });
      same(await page.evaluate(accessibilityFaults), [], `${colorScheme}, ${width} pixels`);
      // As text, because a page's security policy may forbid to make a function of one; at once, because it may refresh.
      same(await page.evaluate(`(${fill})(); (${spills})()`), [], `${colorScheme}, ${width} pixels`);
    }
  }
}

async function accessibilityFaults() {
  const { violations } = await axe.run(document, { resultTypes: ['violations'] });
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target).join(', ')}`);
}

function spills() {
  const isOver = (element) => {
    // What scrolls inside a region does not spill over the page.
    if (element.parentElement.closest('[role=region]') !== null) return false;
    const overflows = getComputedStyle(element).overflowX === 'visible' && element.scrollWidth > element.clientWidth + 1;
    const isBlock = getComputedStyle(element).display !== 'inline';
    return element.getBoundingClientRect().right > innerWidth || (overflows && isBlock);
  };
  return [...document.querySelectorAll('body *:not(svg *)')]
    .filter(isOver)
    .map((element) => `${element.id || element.tagName} spills over`);
}
