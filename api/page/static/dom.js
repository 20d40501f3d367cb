// @ts-check
// Elements are made here, and only here. Text is always a text node: no name of a pod, a device
// or a plugin can become markup.

/**
 * el makes an element. Children that are texts become text nodes.
 * @param {string} name
 * @param {Record<string, any>} [attributes] functions are listeners; false, null and undefined are left out
 * @param {...(Node|string|number|null|undefined)} children
 * @returns {HTMLElement}
 */
export function el(name, attributes = {}, ...children) {
  return /** @type {HTMLElement} */ (fill(document.createElement(name), attributes, children));
}

/**
 * svg makes an element of a picture.
 * @param {string} name
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string|number|null|undefined)} children
 * @returns {SVGElement}
 */
export function svg(name, attributes = {}, ...children) {
  return /** @type {SVGElement} */ (fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children));
}

/**
 * @param {Element} node
 * @param {Record<string, any>} attributes
 * @param {(Node|string|number|null|undefined)[]} children
 */
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(key, value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, String(value));
  }
  for (const child of children) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/**
 * table makes a table in a frame that scrolls.
 * @param {string[]} headers
 * @param {(Node|string|number|null|undefined)[][]} rows
 */
export function table(headers, rows) {
  return el('div', { class: 'wide' }, el('table', {},
    el('thead', {}, el('tr', {}, ...headers.map((h) => el('th', { scope: 'col' }, h)))),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, ...row.map((cell) => el('td', {}, cell === '' || cell === null || cell === undefined ? '–' : cell)))))));
}

/** @param {string[]} lines */
export function list(lines) {
  return el('ul', { class: 'lines' }, ...lines.map((line) => el('li', {}, line)));
}

/**
 * bytes spells an amount with three digits.
 * @param {string|number} n
 */
export function bytes(n) {
  const units = ['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'];
  let v = Number(n);
  let i = 0;
  for (; v >= 1000 && i < units.length - 1; i++) v /= 1024;
  return (i === 0 || v >= 100 ? v.toFixed(0) : v.toFixed(1).replace(/\.0$/, '')) + units[i];
}

/**
 * ids reads a list such as "0-3,8".
 * @param {string|undefined} text
 * @returns {number[]}
 */
export function ids(text) {
  const out = [];
  for (const part of (text || '').split(',')) {
    const found = /^(\d+)(?:-(\d+))?$/.exec(part);
    if (!found) continue;
    const last = Number(found[2] ?? found[1]);
    for (let id = Number(found[1]); id <= last && out.length < 16384; id++) out.push(id);
  }
  return out;
}

/**
 * word is the last part of an enum's name in lower case: HEALTH_UNHEALTHY is unhealthy.
 * @param {string|undefined} name
 * @param {string} prefix
 */
export function word(name, prefix) {
  return (name || '').replace(prefix, '').toLowerCase().replaceAll('_', ' ');
}
