// The balancer's page in Chromium: node balancer.mjs 127.0.0.1:9901 /usr/bin/chromium
// The balancer has the admin token "a-token-of-the-test", one backend that is up, and one that is down.
import { isAccessible, openTab, startBrowser } from './browser.mjs';
import { check, runChecks, same, within } from './checks.mjs';

const [admin, executablePath] = process.argv.slice(2);
const { browser, finish } = await startBrowser(executablePath);

const openPage = () => openTab(browser, `http://${admin}/`);

const says = (page, words) =>
  page.waitForFunction((words) => document.querySelector('#verdict').textContent.includes(words), words, { timeout: 20_000 });

async function enter(page, token) {
  await page.waitForSelector('#token-form', { state: 'visible' });
  await page.fill('#token', token);
  await page.click('#token-form button');
}

check('the page asks for the token and shows nothing without it', async () => {
  const page = await openPage();
  await says(page, 'the token is needed');
  await enter(page, 'a guess');
  await says(page, 'that is not the token');
  same(await page.locator('#backends tr').count(), 0, 'rows');
  await page.close();
});

check('the page shows each backend and its state', async () => {
  const page = await openPage();
  await enter(page, 'a-token-of-the-test');
  await says(page, '1 of 2 backends up; down: 127.0.0.1:1');
  same(await page.locator('#backends tr').count(), 2, 'rows');
  same(await page.locator('#backends .good').allTextContents(), ['up'], 'states');
  same(await page.locator('#backends .bad').allTextContents(), ['down'], 'states');
  await page.close();
});

check('the page is accessible and fits from 320 to 2,560 pixels, light and dark', async () => {
  const page = await openPage();
  await page.waitForSelector('#token-form', { state: 'visible' });
  await isAccessible(page, () => {});
  await enter(page, 'a-token-of-the-test');
  await says(page, '1 of 2 backends up');
  await isAccessible(page, () => {
    for (const figure of document.querySelectorAll('#tiles dd')) figure.textContent = '1,000,000 / 1.1M';
  });
  // The answers without a token are all that the browser complains of.
  same(page.complaints.filter((text) => !text.includes('401')), [], 'complaints');
  await page.close();
});

await within(240_000, runChecks(finish)).catch(async (error) => {
  console.log(`FAILED balancer: ${error.message}`);
  process.exit(1);
});
