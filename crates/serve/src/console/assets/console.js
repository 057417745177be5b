// What script adds to pages that work without it: they stay current, ages count, and changes are announced.
// Strict content security policy: no text becomes markup here. A page is fetched as a parsed document, and its
// nodes are moved over. Nothing is stored, and nothing but this server is asked.
"use strict";
(() => {
  const root = document.documentElement;
  const body = document.body;
  root.classList.add("scripted");
  const by = (id) => document.getElementById(id);
  const state = by("state");
  const say = by("say");

  // Ages and remaining times, by the clock of the server.

  let live = true;
  let lostAt = 0;
  let ahead = Number(body.dataset.now) - Date.now();
  const length = (ms) => {
    if (ms < 0) ms = 0;
    const s = Math.floor(ms / 1000);
    const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
    const at = units.findIndex(([, size]) => s >= size);
    if (at < 0) return "0 s";
    const [unit, size] = units[at];
    const rest = units[at + 1] && Math.floor((s % size) / units[at + 1][1]);
    return `${Math.floor(s / size)} ${unit}` + (rest ? ` ${rest} ${units[at + 1][0]}` : "");
  };
  const tick = () => {
    if (!live) return;
    const now = Date.now() + ahead;
    for (const one of document.querySelectorAll("[data-since]")) {
      write(one, length(now - Number(one.dataset.since)));
    }
    // Without news from the store, a lease that seems to end may have been renewed.
    if (lostAt || body.classList.contains("stale")) return;
    for (const one of document.querySelectorAll("[data-until]")) {
      write(one, length(Number(one.dataset.until) - now));
    }
  };
  const write = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };

  // A new picture of the same page takes the place of the old one, node by node, so that focus, selection and
  // what is being read stay where they are.

  const key = (node) => (node.nodeType === 1 ? node.id || node.dataset.key || "" : "");
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== 1) {
      old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const keyed = new Map();
    for (const child of old.childNodes) if (key(child)) keyed.set(key(child), child);
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      const known = key(next) && keyed.get(key(next));
      if (known && alike(known, next)) {
        if (known === at) at = at.nextSibling;
        else old.insertBefore(known, at);
        morph(known, next);
      } else if (at && !key(at) && !key(next) && alike(at, next)) {
        const here = at;
        at = at.nextSibling;
        morph(here, next);
      } else {
        old.insertBefore(document.importNode(next, true), at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };

  let seen = body.dataset.picture;
  let wanted = seen;
  let busy = false;
  const get = (done) => {
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.timeout = 20000;
    request.onloadend = () => done(request.status === 200 ? request.response : null);
    request.send();
  };
  const refresh = () => {
    if (busy || document.hidden || !live) return;
    busy = true;
    const asked = wanted;
    get((page) => {
      if (page && page.body.dataset.picture && live) {
        seen = asked;
        show(page);
      }
      // A busy store changes all the time; one picture a second is enough for people.
      setTimeout(() => {
        busy = false;
        if (wanted !== seen) refresh();
      }, page ? 1000 : 5000);
    });
  };
  const show = (page) => {
    ahead = Number(page.body.dataset.now) - Date.now();
    body.dataset.picture = page.body.dataset.picture;
    body.classList.toggle("stale", page.body.classList.contains("stale"));
    document.title = page.title;
    for (const region of page.querySelectorAll("[data-live]")) {
      const here = by(region.id);
      if (here) morph(here, region);
    }
    const news = by("news");
    if (news && say.dataset.last !== news.textContent) {
      if (say.dataset.last !== undefined) write(say, news.textContent);
      say.dataset.last = news.textContent;
    }
    tick();
  };

  // One stream for a page that is looked at. A hidden page has none, since browsers allow few for each server.

  let stream = null;
  // The time of its last event. A console that is stopped or cut off closes nothing; one that lives sends an event
  // every 15 seconds at least.
  let heard = 0;
  const SILENCE = 40000;
  const mark = (kind, text) => {
    state.firstElementChild.className = `dot ${kind}`;
    write(state.lastElementChild, text);
  };
  const open = () => {
    if (stream || !live || document.hidden || !body.dataset.events) return;
    stream = new EventSource(body.dataset.events);
    heard = performance.now();
    stream.addEventListener("alive", () => {
      heard = performance.now();
    });
    stream.addEventListener("picture", (event) => {
      heard = performance.now();
      lostAt = 0;
      root.classList.remove("cut");
      by("cut").hidden = true;
      mark(body.classList.contains("stale") ? "bad" : "good live", "Live");
      wanted = event.data;
      if (wanted !== seen) refresh();
    });
    stream.onerror = () => {
      lose(0);
      // A refusal ends a stream for good, so it is opened again here.
      if (stream.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, 5000);
      }
    };
  };
  const close = () => {
    if (stream) stream.close();
    stream = null;
  };
  // Says that there is no connection, as it has not been for so long.
  const lose = (silence) => {
    lostAt = lostAt || Date.now() - silence;
    mark("bad", "Reconnecting");
    root.classList.add("cut");
    const cut = by("cut");
    write(cut.querySelector("time"), new Date(lostAt + ahead).toISOString().slice(11, 19) + " UTC");
    cut.hidden = false;
  };
  const listen = () => {
    const silence = performance.now() - heard;
    if (!stream || silence < SILENCE) return;
    lose(silence);
    close();
    open();
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);

  const pause = by("pause");
  if (pause) {
    pause.addEventListener("click", () => {
      live = !live;
      pause.setAttribute("aria-pressed", String(!live));
      if (live) {
        mark("", "Connecting");
        seen = "";
        open();
      } else {
        close();
        mark("", "Paused");
      }
    });
  }

  for (const menu of document.querySelectorAll("select[data-submit]")) {
    menu.addEventListener("change", () => menu.form.requestSubmit());
  }
  const news = by("news");
  if (news) say.dataset.last = news.textContent;
  setInterval(tick, 1000);
  setInterval(listen, 1000);
  tick();
  open();
})();
