// Requests to the server.

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Refused("No response from the server. Is `unflip review` still running?", 0);
  }
  const content = await answer.json().catch(() => ({ error: `The server returned status ${answer.status}` }));
  if (!answer.ok) throw new Refused(content.error, answer.status);
  return content;
}

export const get = (path, query = {}) => {
  const parts = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  return ask(parts.length ? `${path}?${new URLSearchParams(parts)}` : path);
};

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Each request has a unique id, so that repeating it after a lost response has no further effect.
export async function post(path, body) {
  const request = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...body, request }) };
  for (const wait of [200, 800, 0]) {
    try {
      return await ask(path, options);
    } catch (error) {
      if (error.status !== 0 || wait === 0) throw error;
      await pause(wait);
    }
  }
}
