// @ts-check
// The page: what is known of the machine, and a view of it by the part behind # in the address.
import { el, table, list, bytes, ids, word } from './dom.js';
import { draw, order, podOnMap, claimed, letter, color } from './map.js';

/** What is known. pods has what Watch has told; machine and state come by GET. */
const known = {
  /** @type {any} */ machine: null,
  /** @type {any} */ state: null,
  /** @type {Map<string, any>} */ pods: new Map(),
  /** @type {number[]} */ shared: [],
  revision: '',
};

const main = /** @type {HTMLElement} */ (document.getElementById('main'));
const statusLine = /** @type {HTMLElement} */ (document.getElementById('status'));

/** @param {string} text @param {boolean} [bad] */
function say(text, bad = false) {
  statusLine.textContent = text;
  statusLine.className = bad ? 'bad' : '';
}

// The secret of the session. It is kept for this port only, and the program forgets it when it ends.
const sessionKey = 'berth-session';

/** @param {Record<string, string>} [more] @returns {Record<string, string>} */
function headers(more = {}) {
  const session = localStorage.getItem(sessionKey);
  return session ? { ...more, 'X-Berth-Session': session } : more;
}

/** login sends the key of the link, once, and removes it from the address. */
async function login() {
  const key = /^#login=(.+)$/.exec(location.hash);
  if (!key) return;
  history.replaceState(null, '', location.pathname);
  localStorage.setItem(sessionKey, (await api('login', key[1])).session);
}

/**
 * api makes a call. An error is the message of berthd.
 * @param {string} path
 * @param {string} [body]
 * @returns {Promise<any>}
 */
async function api(path, body) {
  const answer = await fetch(`api/v1/${path}`, body === undefined ? { headers: headers() } : { method: 'POST', body, headers: headers({ 'X-Berth-Page': '1', 'Content-Type': 'text/plain' }) });
  const text = await answer.text();
  if (!answer.ok) {
    let message = text;
    try { message = JSON.parse(text).message; } catch { /* the text of a proxy, or of the guard */ }
    throw new Error(message);
  }
  return JSON.parse(text);
}

/** @param {unknown} e */
function problem(e) { return e instanceof Error ? e.message : String(e); }

/** @param {string} uid */
function podName(uid) {
  const pod = known.pods.get(uid);
  return pod ? `${pod.namespace}/${pod.name}` : uid;
}

/** @param {any[]} extra pods that are not on the machine @returns {import('./map.js').Scene} */
function scene(extra = []) {
  const taken = new Set(extra.flatMap((p) => p.cpus));
  return {
    machine: known.machine, state: known.state,
    pods: order([...[...known.pods.values()].map(podOnMap), ...extra]), shared: known.shared.filter((id) => !taken.has(id)),
  };
}

// The views. Each returns its content; live ones are drawn again when something changes.

// What stays when the map is drawn again; about selects the part of the map that is described.
/** @type {{only: string, viewBox: string, chosen: number, about: string}} */
const onMap = { only: '', viewBox: '', chosen: -1, about: '' };

/** @type {Record<string, {live: boolean, show: () => Node|Promise<Node>}>} */
const views = {
  machine: { live: true, show: machineView },
  pods: { live: true, show: podsView },
  verdicts: { live: false, show: verdictsView },
  whatif: { live: false, show: whatifView },
  policy: { live: false, show: policyView },
  devices: { live: true, show: devicesView },
};

function machineView() {
  const s = scene();
  const { picture, use } = draw(s, { only: onMap.only });
  picture.id = 'map'; // so that it keeps the focus
  if (onMap.viewBox) picture.setAttribute('viewBox', onMap.viewBox);
  new MutationObserver(() => { onMap.viewBox = picture.getAttribute('viewBox') || ''; }).observe(picture, { attributeFilter: ['viewBox'] });
  const about = el('div', { class: 'panel', 'aria-live': 'polite', id: 'about' }, el('p', { class: 'soft' }, 'Point at a CPU or a device, or use the arrow keys in the map, to see who has it and why. + and - zoom, 0 shows all.'));
  const tell = (/** @type {Element|null} */ target) => {
    const cpu = target?.getAttribute('data-cpu');
    const device = target?.getAttribute('data-device');
    const uid = target?.getAttribute('data-pod');
    if (cpu) about.replaceChildren(aboutCPU(Number(cpu), s, use));
    else if (device) about.replaceChildren(aboutDevice(String(target?.getAttribute('data-resource')), device, uid));
    else if (uid) about.replaceChildren(el('p', {}, podName(uid)));
    else return;
    onMap.about = ['cpu', 'device', 'resource', 'pod'].map((name) => [`data-${name}`, target?.getAttribute(`data-${name}`)])
      .filter(([name, value]) => value && (name !== 'data-pod' || !device)).map(([name, value]) => `[${name}="${CSS.escape(String(value))}"]`).join('');
  };
  const choose = (/** @type {number} */ id) => {
    picture.querySelector('.chosen')?.classList.remove('chosen');
    const at = picture.querySelector(`[data-cpu="${id}"]`);
    if (!at) return;
    onMap.chosen = id;
    at.classList.add('chosen');
    tell(at);
  };
  picture.addEventListener('pointermove', (e) => { if (e.target instanceof Element && !(e.buttons & 1)) tell(e.target); });
  picture.addEventListener('keydown', (e) => {
    const all = s.machine.cpus.map((/** @type {any} */ c) => c.cpu);
    const at = all.indexOf(onMap.chosen);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 16, ArrowUp: -16 }[e.key];
    if (step === undefined) return;
    e.preventDefault();
    choose(all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))]);
  });
  const legend = el('ul', { class: 'legend' },
    ...s.pods.slice(0, 30).map((p, i) => {
      const mark = el('b', { class: 'mark' }, letter(i));
      mark.style.background = color(i); // as in the map, where the letter is black
      const chosen = onMap.only === p.uid;
      return el('li', {}, mark, ' ', el('button', { class: 'plain', 'aria-pressed': chosen, click: () => { onMap.only = chosen ? '' : p.uid; render(); } }, p.name));
    }),
    s.pods.length > 30 ? el('li', { class: 'soft' }, `and ${s.pods.length - 30} smaller pods`) : null,
    el('li', { class: 'soft' }, 'empty: shared or free   hatched: reserved   × offline or unhealthy   ! held and offline or unhealthy   ? unknown holder'));
  if (onMap.chosen >= 0) picture.querySelector(`[data-cpu="${onMap.chosen}"]`)?.classList.add('chosen');
  if (onMap.about) tell(picture.querySelector(onMap.about));
  return el('section', { 'aria-label': 'Machine' }, about, picture, legend);
}

/**
 * @param {number} id
 * @param {import('./map.js').Scene} s
 * @param {Map<number, import('./map.js').Use>} use
 */
function aboutCPU(id, s, use) {
  const c = s.machine.cpus.find((/** @type {any} */ x) => x.cpu === id);
  const u = use.get(id);
  const where = c ? `CPU ${id}: core ${c.core}, node ${c.numaNode}, socket ${c.socket}. ` : `CPU ${id}. `;
  if (u?.pod === undefined) {
    const text = { shared: 'Shared: containers without exclusive CPUs run here, and a pod could get it.', reserved: 'Reserved for the system, or for claims on dynamic resources.', offline: 'Offline.' }[u?.kind ?? ''] ?? 'berthd does not know what it is used for.';
    return el('p', {}, where + text);
  }
  const pod = s.pods[u.pod];
  if (pod.pod?.resourceClaimNodes) {
    const users = usersOf(pod.uid);
    return el('p', {}, `${where}${u.kind === 'broken' ? 'Offline, and held' : 'Exclusive, held'} by `, el('b', {}, pod.name), `, ${users.length ? `used by ${users.join(', ')}` : 'not in use'}. `,
      el('a', { href: `#verdicts/${encodeURIComponent(pod.uid)}` }, 'why'));
  }
  const claim = pod.claims.find((x) => x.cpu && ids(x.cpu.cpus?.list).includes(id));
  const nodes = claim?.affinity?.numaNodes?.ids;
  const why = nodes ? ` The topology policy placed the container on node ${nodes.join(', ')}${claim.affinity.preferred ? ', and no smaller set of nodes could do' : '; fewer could do on an idle machine'}.` : '';
  return el('p', {}, `${where}${u.kind === 'broken' ? 'Offline, and held' : 'Exclusive, held'} by `, el('b', {}, pod.name), `${claim?.containerName ? `, container ${claim.containerName}` : ''}.${why} `,
    el('a', { href: `#verdicts/${encodeURIComponent(pod.uid)}` }, 'why'));
}

/**
 * usersOf names the containers that use a claim on dynamic resources, as berth-nri has told with their pods.
 * @param {string} uid
 */
function usersOf(uid) {
  return [...known.pods.values()].flatMap((p) => (p.containers || [])
    .filter((/** @type {any} */ c) => (c.externalDevices || []).some((/** @type {any} */ d) => d.resource === 'dra.berthd.github.io/claim' && d.id.split(':')[0] === uid))
    .map((/** @type {any} */ c) => `${p.namespace}/${p.name}/${c.containerName}`));
}

/** @param {string} resource @param {string} id @param {string|null|undefined} uid */
function aboutDevice(resource, id, uid) {
  return el('p', {}, `${resource} ${id}: ${uid ? `held by ${podName(uid)}` : 'free'}`);
}

let podFilter = '';

function podsView() {
  const rows = el('div', {});
  const fill = () => {
    const pods = [...known.pods.values()].map(podOnMap).filter((p) => p.name.includes(podFilter)).sort((a, b) => (a.name < b.name ? -1 : 1));
    rows.replaceChildren(table(['Pod', 'QoS', 'CPUs', 'NUMA nodes', 'Memory', 'Devices', 'Admitted'], pods.map((p) => {
      const nodes = new Set(p.claims.flatMap((c) => c.affinity?.numaNodes?.ids || []));
      const memory = p.claims.flatMap((c) => (c.memory?.blocks || []).map((/** @type {any} */ b) => `${c.resource} ${bytes(b.bytes)} on ${(b.numaNodes?.ids || []).join(', ')}`));
      const devices = p.claims.filter((c) => c.device).map((c) => `${c.resource}: ${c.device.devices.map((/** @type {any} */ d) => d.id).join(', ')}`);
      return [el('a', { href: `#verdicts/${encodeURIComponent(p.uid)}` }, p.name), word(p.pod.qosClass, 'QOS_CLASS_'), p.cpus.length ? compact(p.cpus) : 'shared',
        [...nodes].sort().join(', '), memory.join('; '), devices.join('; '), p.pod.admitTime ? new Date(p.pod.admitTime).toLocaleString() : ''];
    })));
  };
  fill();
  const input = /** @type {HTMLInputElement} */ (el('input', { type: 'search', id: 'filter', value: podFilter, 'aria-label': 'Filter by name', placeholder: 'filter', input: () => { podFilter = input.value; fill(); } }));
  return el('section', {}, el('div', { class: 'bar' }, el('h2', {}, 'Pods'), input), rows);
}

/** @param {number[]} list sorted */
function compact(list) {
  const out = [];
  for (let i = 0; i < list.length;) {
    let j = i;
    while (j + 1 < list.length && list[j + 1] === list[j] + 1) j++;
    out.push(i === j ? `${list[i]}` : `${list[i]}-${list[j]}`);
    i = j + 1;
  }
  return out.join(',');
}

async function verdictsView() {
  const [, uid] = route();
  const traces = (await api('traces')).traces || [];
  const detail = el('div', {});
  const explain = async (/** @type {string} */ query) => {
    try { detail.replaceChildren(explanation((await api(`trace?${query}`)).trace)); } catch (e) { detail.replaceChildren(el('p', { class: 'bad' }, problem(e))); }
  };
  if (uid) await explain(`pod=${encodeURIComponent(uid)}`);
  const rows = table(['Pod', 'Verdict', 'Reason'], traces.map((/** @type {any} */ t) => [
    el('button', { class: 'plain', click: () => explain(`admission=${encodeURIComponent(t.admissionId)}`) }, `${t.namespace}/${t.name}`),
    verdict(t), t.message || t.reason,
  ]));
  return el('section', {}, el('h2', {}, 'Verdicts'), el('div', { class: 'two' }, rows, detail));
}

/** @param {any} t a berth.types.v1.Trace */
function verdict(t) {
  if (t.admitted) return el('span', { class: 'good' }, 'admitted');
  return el('span', { class: 'bad' }, t.reason ? `rejected: ${t.reason}` : 'deferred');
}

/** @param {any} t a berth.types.v1.Trace */
function explanation(t) {
  const steps = (t.steps || []).map(stepText).filter((/** @type {string} */ x) => x);
  const missing = t.missing || [];
  const help = (t.suggestions || []).map((/** @type {any} */ s) => [s.text, ...(s.how || [])].join('\n'));
  return el('div', { class: 'explanation' }, el('h3', {}, `${t.namespace}/${t.name} `, verdict(t)), t.message ? el('p', {}, t.message) : null,
    missing.length ? el('h3', {}, 'Missing') : null, missing.length ? list(missing) : null,
    help.length ? el('h3', {}, 'It would fit') : null, help.length ? list(help) : null,
    el('h3', {}, 'Steps'), list(steps));
}

/** @param {any} s a berth.types.v1.TraceStep */
function stepText(s) {
  const who = `${s.containerName ? `container ${s.containerName}: ` : ''}${s.provider || ''}`;
  const kind = word(s.kind, 'TRACE_STEP_KIND_');
  const hints = (s.hints || []).map((/** @type {any} */ h) => `{${(h.numaNodes?.ids || ['any']).join(',')}}${h.preferred ? '*' : ''}`).join(' ');
  const parts = [kind];
  if (s.resource && s.resource !== s.provider) parts.push(s.resource);
  if (kind === 'answered') parts.push(word(s.answer, 'TOPOLOGY_HINTS_KIND_'));
  if (hints) parts.push(`nodes ${hints}`);
  if (s.claim) parts.push(claimText(s.claim));
  if (s.text) parts.push(s.text);
  return `${who} ${parts.join(', ')}`.trim();
}

/** @param {any} c a berth.types.v1.Claim */
function claimText(c) {
  if (c.cpu) return `CPUs ${c.cpu.cpus?.list} (${word(c.cpu.sharing, 'CPU_SHARING_')})`;
  if (c.memory) return `${c.resource} ${(c.memory.blocks || []).map((/** @type {any} */ b) => `${bytes(b.bytes)} on ${(b.numaNodes?.ids || []).join(', ')}`).join('; ')}`;
  if (c.device) return `${c.resource} ${(c.device.devices || []).map((/** @type {any} */ d) => d.id).join(', ')}`;
  return c.resource;
}

const example = `apiVersion: v1
kind: Pod
metadata: {name: trial, namespace: default}
spec:
  containers:
  - name: main
    resources:
      limits: {cpu: 2, memory: 1Gi}
`;

let trialText = example;

function whatifView() {
  const text = /** @type {HTMLTextAreaElement} */ (el('textarea', { id: 'pod', spellcheck: 'false', 'aria-label': 'Pod in YAML or JSON', input: () => { trialText = text.value; } }));
  text.value = trialText;
  const result = el('div', { id: 'result', 'aria-live': 'polite' });
  const run = async () => {
    try {
      const answer = await api('trials/pod', text.value);
      result.replaceChildren(trialResult(answer));
    } catch (e) { result.replaceChildren(el('p', { class: 'bad' }, problem(e))); }
  };
  text.addEventListener('keydown', (e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) run(); });
  return el('section', {}, el('h2', {}, 'What if'), el('p', { class: 'soft' }, 'The verdict on a pod as if it came now. Nothing changes.'),
    el('div', { class: 'two' }, el('div', {}, text, el('div', { class: 'bar' }, el('button', { id: 'try', click: run }, 'Try'), el('span', { class: 'soft' }, 'or Ctrl+Enter'))), result));
}

/** @param {any} answer a berth.admission.v1.AdmitResponse */
function trialResult(answer) {
  const admitted = answer.verdict === 'VERDICT_ADMITTED';
  const head = el('p', { id: 'verdict', class: admitted ? 'good' : 'bad' }, word(answer.verdict, 'VERDICT_'), answer.reason ? `: ${answer.reason}` : '');
  const steps = answer.trace?.steps || [];
  let claims = /** @type {any[]} */ ([]);
  for (const s of steps) {
    if (s.kind === 'TRACE_STEP_KIND_REPLANNED') claims = [];
    if (s.kind === 'TRACE_STEP_KIND_PLANNED') claims.push(s.claim);
  }
  const out = [head];
  if (admitted) {
    const t = answer.trace;
    const planned = { uid: t.podUid, name: `${t.namespace}/${t.name}`, claims, cpus: claimed(claims), planned: true, pod: null };
    out.push(claims.length ? list(claims.map(claimText)) : el('p', {}, 'on the shared CPUs'));
    const { picture } = draw(scene(known.pods.has(planned.uid) ? [] : [planned]), { only: planned.uid, small: true });
    out.push(/** @type {any} */ (picture));
  }
  if (answer.trace) out.push(explanation(answer.trace));
  return el('div', {}, ...out);
}

async function policyView() {
  const now = await api('policy');
  const s = now.settings || {};
  const fields = [['topologyPolicy', 'Topology policy', ['none', 'best-effort', 'restricted', 'single-numa-node']], ['topologyScope', 'Scope', ['container', 'pod']], ['cpuPolicy', 'CPU policy', ['none', 'static']], ['memoryPolicy', 'Memory policy', ['None', 'Static']]];
  const inputs = fields.map(([key, name, values]) => {
    const select = /** @type {HTMLSelectElement} */ (el('select', { id: key }, ...(/** @type {string[]} */ (values)).map((v) => el('option', { value: v, selected: s[/** @type {string} */ (key)] === v ? '' : null }, v))));
    return { key: /** @type {string} */ (key), name: /** @type {string} */ (name), select };
  });
  const reserved = /** @type {HTMLInputElement} */ (el('input', { id: 'reservedCpus', value: s.reservedCpus?.list || '' }));
  const result = el('div', { 'aria-live': 'polite' });
  const run = async () => {
    /** @type {Record<string, any>} */
    const request = {};
    for (const i of inputs) if (i.select.value !== s[i.key]) request[i.key] = i.select.value;
    if (reserved.value !== (s.reservedCpus?.list || '')) request.reservedCpus = { list: reserved.value };
    try { result.replaceChildren(policyResult(await api('trials/policy', JSON.stringify(request)))); } catch (e) { result.replaceChildren(el('p', { class: 'bad' }, problem(e))); }
  };
  const options = (/** @type {any} */ o) => Object.entries(o || {}).sort().map(([k, v]) => `${k}=${v}`).join(', ');
  return el('section', {}, el('h2', {}, 'Policy'), el('p', { class: 'soft' }, now.overridden ? `Set by a call at ${new Date(now.setTime).toLocaleString()}.` : 'As configured.'),
    table(['Setting', 'Value'], [['Topology policy', `${s.topologyPolicy}, ${s.topologyScope} scope`], ['Topology options', options(s.topologyOptions)], ['CPU policy', s.cpuPolicy], ['CPU options', options(s.cpuOptions)],
      ['Memory policy', s.memoryPolicy], ['Reserved CPUs', s.reservedCpus?.list], ['System reserved', options(s.systemReserved)], ['Kube reserved', options(s.kubeReserved)], ['Eviction', options(s.evictionHard)]]),
    el('h3', {}, 'What another policy would change'), el('p', { class: 'soft' }, 'Nothing changes; the running pods keep what they have in any case.'),
    el('div', { class: 'bar' }, ...inputs.map((i) => el('label', {}, i.name, i.select)), el('label', {}, 'Reserved CPUs', reserved), el('button', { id: 'trypolicy', click: run }, 'Try')), result);
}

/** @param {any} r a berth.topology.v1.SetPolicyResponse */
function policyResult(r) {
  if (!r.changed) return el('p', {}, 'This is the policy in force.');
  /** @type {Record<string, string>} */
  const fates = { FATE_SAME: 'the same', FATE_OTHERWISE: 'something else', FATE_REFUSED: 'rejected' };
  return el('div', {}, el('p', {}, `Shared CPUs: ${r.sharedBefore?.list || 'none'}, then ${r.sharedAfter?.list || 'none'}. Reserved CPUs: ${r.reservedBefore?.list || 'none'}, then ${r.reservedAfter?.list || 'none'}.`),
    table(['Pod', 'If it came anew', 'Why', 'Keeps against the new policy'], (r.pods || []).map((/** @type {any} */ p) => [`${p.namespace}/${p.name}`, fates[p.fate] ?? p.fate, p.message || p.reason, (p.grandfathered || []).join('; ')])));
}

function devicesView() {
  const resources = known.state.device.resources || [];
  if (!resources.length) return el('section', {}, el('h2', {}, 'Devices'), el('p', {}, 'berthd knows no devices.'));
  return el('section', {}, el('h2', {}, 'Devices'), ...resources.flatMap((/** @type {any} */ r) => [
    el('h3', {}, `${r.name}: plugin ${word(r.pluginState, 'PLUGIN_STATE_')}, ${r.allocatable} of ${r.capacity} healthy, ${r.inUse} in use`),
    table(['Device', 'NUMA nodes', 'Health', 'Held by', 'Health history'], (r.devices || []).map((/** @type {any} */ d) => [
      d.device.id, (d.device.numaNodes?.ids || []).join(', '), el('span', { class: d.device.health === 'HEALTH_HEALTHY' ? 'good' : 'bad' }, word(d.device.health, 'HEALTH_')),
      (d.holders || []).map((/** @type {any} */ h) => `${podName(h.podUid)}${h.containerName ? `/${h.containerName}` : ''}`).join(', '),
      (d.device.healthHistory || []).map((/** @type {any} */ h) => `${new Date(h.time).toLocaleString()} ${word(h.health, 'HEALTH_')}`).join('; '),
    ])),
  ]));
}

// Which view is shown, and when it is drawn.

/** @returns {string[]} */
function route() {
  const [name, ...rest] = location.hash.slice(1).split('/');
  return [views[name] ? name : 'machine', decodeURIComponent(rest.join('/'))];
}

let turn = 0;

async function render() {
  if (!known.machine || !known.state) return;
  const mine = ++turn;
  const [name] = route();
  for (const a of document.querySelectorAll('nav a')) {
    if (a.getAttribute('href') === `#${name}`) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  try {
    const start = performance.now();
    const shown = views[name].show();
    const content = shown instanceof Promise ? await shown : shown;
    if (mine !== turn) return;
    const focused = document.activeElement?.id;
    main.replaceChildren(content);
    main.dataset.view = name;
    main.dataset.revision = known.revision;
    main.dataset.drawn = String(Math.round(performance.now() - start));
    if (focused) document.getElementById(focused)?.focus();
  } catch (e) {
    if (mine === turn) main.replaceChildren(el('p', { class: 'bad' }, problem(e)));
  }
}

let due = false;

/** changed draws a live view again, at most once a frame. */
function changed() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    say(`${known.pods.size} pods, revision ${known.revision}`);
    if (views[route()[0]].live || main.dataset.view === undefined) render();
  });
}

let reading = false;
let stale = false;

/** readState reads what Watch does not tell: memory by node and all devices. One call at a time. */
async function readState() {
  stale = true;
  if (reading) return;
  reading = true;
  while (stale) {
    stale = false;
    try { known.state = await api('state'); changed(); } catch (e) { say(problem(e), true); }
  }
  reading = false;
}

/** @param {any} message a berth.allocation.v1.WatchResponse */
function apply(message) {
  for (const e of message.events || []) {
    const pod = e.added ?? e.changed;
    if (pod) known.pods.set(pod.uid, pod);
    if (e.removed) known.pods.delete(e.removed.uid);
    if (e.sharedCpus) known.shared = ids(e.sharedCpus.list);
    if (e.machine) api('machine').then((m) => { known.machine = m; changed(); }, (p) => say(problem(p), true));
  }
  known.revision = message.revision;
  changed();
  readState();
}

/**
 * follow reads the stream of events, and begins again where it ended. An EventSource sends no headers.
 * @param {string} [last] the revision from which the stream resumes
 */
async function follow(last = '') {
  let begun = last !== '';
  try {
    const answer = await fetch('api/v1/events', { headers: headers(last ? { 'Last-Event-ID': last } : {}) });
    if (answer.status === 204) last = ''; // the revision is too old
    if (!answer.ok || !answer.body) throw new Error(await answer.text());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const events = (rest + value).split('\n\n');
      rest = events.pop() ?? '';
      for (const event of events) {
        const data = /^data: (.*)$/m.exec(event);
        if (!data) continue;
        const message = JSON.parse(data[1]);
        if (!begun) { begun = true; known.pods.clear(); }
        last = String(message.revision);
        apply(message);
      }
    }
  } catch { /* it is tried again */ }
  say('no connection to berthd; trying again', true);
  setTimeout(() => follow(last), 1000);
}

async function start() {
  try {
    await login();
    document.title = (await api('about')).about;
    known.machine = await api('machine');
  } catch (e) {
    say(problem(e), true);
    setTimeout(start, 2000);
    return;
  }
  follow();
  addEventListener('hashchange', render);
}

start();
