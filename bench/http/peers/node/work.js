// The benchmark's work, as the suite's own Node server does it.
exports.answer = (body) => {
  const { product, requestId, group } = JSON.parse(body);
  let least = Infinity;
  let greatest = -Infinity;
  for (const text of group.dates) {
    const at = Date.parse(text);
    if (Number.isNaN(at)) throw new Error("no date: " + text);
    if (at < least) least = at;
    if (at > greatest) greatest = at;
  }
  const [minDate, maxDate] = [new Date(least), new Date(greatest)];
  return JSON.stringify({ product, requestId, client: { balance: group.balance, minDate, maxDate } });
};
