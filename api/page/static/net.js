// @ts-check
// Calls to the program that serves this page. They go to this address and to no other.

// The secret of the session. It is kept for this port only, and the program forgets it when it ends.
const sessionKey = 'berth-session';

/** @param {Record<string, string>} [more] @returns {Record<string, string>} */
function headers(more = {}) {
  const session = localStorage.getItem(sessionKey);
  return session ? { ...more, 'X-Berth-Session': session } : more;
}

/** login sends the key of the link, once, and removes it from the address. */
export async function login() {
  const key = /^#login=(.+)$/.exec(location.hash);
  if (!key) return;
  history.replaceState(null, '', location.pathname);
  localStorage.setItem(sessionKey, (await api('login', key[1])).session);
}

/** Problem is an error of a call, with what is wrong in a text that was sent. */
export class Problem extends Error {
  /** @param {string} message @param {string} code @param {{line: number, text: string}[]} mistakes */
  constructor(message, code, mistakes) {
    super(message);
    this.code = code;
    this.mistakes = mistakes;
  }
}

/** @param {unknown} e */
export function problem(e) { return e instanceof Error ? e.message : String(e); }

/**
 * api makes a call. An error is the message of berthd.
 * @param {string} path
 * @param {string} [body]
 * @returns {Promise<any>}
 */
export async function api(path, body) {
  const answer = await fetch(`api/v1/${path}`, body === undefined ? { headers: headers() } : { method: 'POST', body, headers: headers({ 'X-Berth-Page': '1', 'Content-Type': 'text/plain' }) });
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  let wrong = { message: text.trim(), code: '', mistakes: [] };
  try { wrong = JSON.parse(text); } catch { /* the text of a proxy, or of the guard */ }
  throw new Problem(wrong.message, wrong.code, wrong.mistakes ?? []);
}

/**
 * patient makes a call again, once, that came too soon after others.
 * @param {string} path
 */
export async function patient(path) {
  for (let tries = 0; ; tries++) {
    try { return await api(path); } catch (e) {
      if (!(e instanceof Problem) || e.code !== 'ResourceExhausted' || tries === 3) throw e;
      await new Promise((done) => { setTimeout(done, 700); });
    }
  }
}

/**
 * follow reads the stream of events, and begins again where it ended. An EventSource sends no headers.
 * @param {(message: any, first: boolean) => void} apply
 * @param {() => void} lost
 * @param {string} [last] the revision from which the stream resumes
 */
export async function follow(apply, lost, last = '') {
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
        apply(message, !begun);
        begun = true;
        last = String(message.revision);
      }
    }
  } catch { /* it is tried again */ }
  lost();
  setTimeout(() => follow(apply, lost, last), 1000);
}
