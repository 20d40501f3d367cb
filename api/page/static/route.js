// @ts-check
// Addresses: what is shown is in the part behind #, as #/VIEW/PART?NAME=VALUE.

/** @typedef {{path: string[], query: URLSearchParams}} Route */

/** address makes one of its parts. @param {...string} parts */
export function address(...parts) { return `#/${parts.map(encodeURIComponent).join('/')}`; }

/** @returns {Route} */
export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  return { path: path.split('/').filter((p) => p).map(decode), query: new URLSearchParams(query) };
}

/** @param {string} text */
function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** withQuery is this address with other values; empty ones are left out. @param {Record<string, string>} values */
export function withQuery(values) {
  const { path, query } = route();
  for (const [k, v] of Object.entries(values)) {
    if (v) query.set(k, v);
    else query.delete(k);
  }
  const text = query.toString();
  return address(...path) + (text ? `?${text}` : '');
}
