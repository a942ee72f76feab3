// Runs named checks one after the other and reports each on a line of its own.

/** How long one check may take, in milliseconds. */
const LIMIT = 30_000;

const checks = [];

/** Adds a check. It fails by throwing. */
export function check(name, body) {
  checks.push([name, body]);
}

/** Runs all checks; the process ends with 1 if one failed. */
export async function runChecks(finish = async () => {}) {
  let failed = 0;
  for (const [name, body] of checks) {
    try {
      await within(LIMIT, body());
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}: ${error.message ?? error}`);
    }
  }
  await finish();
  process.exit(failed === 0 ? 0 : 1);
}

/** The promise's value, or an error when it does not come in time. */
export function within(milliseconds, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing within ${milliseconds / 1000} s`)), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Throws unless both are the same, and says what they were. */
export function same(actual, expected, what = 'value') {
  const show = (value) => {
    const text = JSON.stringify(value) ?? String(value);
    return text.length > 80 ? `${text.slice(0, 80)}... (${text.length} characters)` : text;
  };
  if (JSON.stringify(actual) !== JSON.stringify(expected)) {
    throw new Error(`${what}: expected ${show(expected)}, got ${show(actual)}`);
  }
}
