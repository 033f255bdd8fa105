// The live page's connection: what the server sends, and what is said when it sends nothing.
//
// The tab keeps all that it has received, and works without the server. `EventSource` tries again
// by itself after a lost connection, but not after a refusal, nor if nothing comes over a connection
// that seems to stand: then this file does.

const SILENT_S = 5; // without contact, until the page says so
const HUNG_S = 35; // without an event: the server sends one every ten seconds
const AGAIN_MS = 5000; // after a refusal: another program may have taken the port

class Live {
  constructor(app) {
    this.app = app;
    this.lostAt = null;
    this.heardAt = Date.now() / 1000;
    this.connect();
    setInterval(() => this.watch(), 1000);
  }

  connect() {
    // The token is in the page's own query string.
    this.source = new EventSource(`events${location.search}`);
    this.source.onopen = () => this.heard();
    this.source.onerror = () => this.lost();
    this.source.addEventListener("alive", () => this.heard());
    this.on("story", (story) => this.app.run.replace(story));
    this.on("batch", (newest) => this.app.run.append(newest));
    this.on("ended", (ended) => this.app.run.end(ended));
  }

  on(name, take) {
    this.source.addEventListener(name, (event) => {
      this.heard();
      take(JSON.parse(event.data));
      // Nothing more will come: a server that is gone as well need not be looked for.
      if (this.app.run.ended) this.source.close();
      this.app.schedule();
    });
  }

  heard() {
    this.heardAt = Date.now() / 1000;
    if (this.lostAt === null) return;
    this.lostAt = null;
    this.app.schedule();
  }

  lost() {
    this.lostAt ??= Date.now() / 1000;
    if (this.source.readyState !== EventSource.CLOSED) return;
    this.source.close();
    setTimeout(() => this.connect(), AGAIN_MS);
  }

  watch() {
    if (this.lostAt !== null) {
      this.app.schedule();
    } else if (!this.app.run.ended && Date.now() / 1000 - this.heardAt > HUNG_S) {
      this.lostAt = this.heardAt;
      this.source.close();
      this.connect();
    }
  }

  /** What is wrong with the connection, as a sentence; null: nothing, or too short to tell. */
  get trouble() {
    // Who has told that the query is over need not answer any more.
    if (this.lostAt === null || this.app.run.ended || Date.now() / 1000 - this.lostAt < SILENT_S) return null;
    return `no answer from ${location.host} since ${clock(this.lostAt)} UTC: the process has crashed `
      + "or was stopped; this page keeps the batches shown so far";
  }
}
