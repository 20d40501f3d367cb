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
 * @param {(Node|string|number|null|undefined)[][]} [body]
 */
export function table(headers, body = []) {
  return el('div', { class: 'wide' }, el('table', {},
    el('thead', {}, el('tr', {}, ...headers.map((h) => el('th', { scope: 'col' }, h)))),
    el('tbody', {}, ...body.map((row) => el('tr', {}, ...row.map(data))))));
}

/**
 * rows puts rows into a table, each with attributes that say what it is about.
 * @param {HTMLElement} into of table
 * @param {{about: Record<string, any>, cells: (Node|string|number|null|undefined)[]}[]} all
 */
export function rows(into, all) {
  /** @type {HTMLElement} */ (into.querySelector('tbody')).replaceChildren(...all.map((r) => el('tr', r.about, ...r.cells.map(data))));
}

/** @param {Node|string|number|null|undefined} cell */
function data(cell) { return el('td', {}, cell === '' || cell === null || cell === undefined ? '–' : cell); }

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

/**
 * ranges spells sorted numbers as "0-3,8".
 * @param {number[]} list
 */
export function ranges(list) {
  const out = [];
  for (let i = 0; i < list.length;) {
    let j = i;
    while (j + 1 < list.length && list[j + 1] === list[j] + 1) j++;
    out.push(i === j ? `${list[i]}` : `${list[i]}-${list[j]}`);
    i = j + 1;
  }
  return out.join(',');
}

/**
 * count puts a number before a noun.
 * @param {number} n
 * @param {string} noun
 */
export function count(n, noun) { return n === 1 ? `1 ${noun}` : `${n} ${noun}s`; }

/**
 * name makes the text of a name that may break between its parts, never within a word.
 * @param {string} text
 */
export function name(text) {
  const out = el('span', { class: 'name' });
  if (text.length < 16) {
    out.append(text);
    return out;
  }
  for (const part of text.split(/(?<=[/.:_-])/)) out.append(part, el('wbr'));
  return out;
}

const [clock, full] = [new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' }), new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' })];

/**
 * when spells a time: the clock of today, else the date, too.
 * @param {string|undefined} stamp
 */
export function when(stamp) {
  if (!stamp) return '';
  const at = new Date(stamp);
  if (Number.isNaN(at.getTime())) return stamp;
  const today = at.toDateString() === new Date().toDateString();
  return el('time', { datetime: stamp, title: today ? null : stamp }, (today ? clock : full).format(at));
}
