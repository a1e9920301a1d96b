// The page: reads the evidence that it carries, has it verified, and replaces everything that the exporter wrote by
// what was verified. Text goes into the page by textContent alone, so that no name and no body can become markup.

import { Fault, hex, missingSupport, parsePin, text, verifyEvidence } from "./veen-verify.js";

const ROWS = 200; // at first; more on request
const MORE_ROWS = 1000;
const SHOWN_CHARS = 2000;
const at = (id) => document.getElementById(id);

// Controls, marks of direction and other invisible characters are spelled out: a name cannot hide or turn its letters.
const STEERING = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const visible = (string, keep = "") =>
  string.replace(STEERING, (character) =>
    keep.includes(character) ? character : `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

function element(name, { className = "", title = "", children = [] } = {}) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (title) made.title = title;
  made.append(...children);
  return made;
}

const short = (digits) => element("code", { title: digits, children: [`${digits.slice(0, 8)}…${digits.slice(-4)}`] });
const full = (digits) => element("code", { className: "hash", children: [digits] });

function time(seconds) {
  const moment = new Date(Number(seconds) * 1000);
  return Number.isNaN(moment.getTime()) ? String(seconds) : `${moment.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function setMark(kind, title, detail) {
  at("mark").className = `mark ${kind}`;
  at("mark-title").textContent = title;
  at("mark-detail").textContent = detail;
  document.body.dataset.state = kind;
}

function bodyText(entry) {
  try {
    return visible(text(entry.body), "\n\t");
  } catch {
    return `hex ${hex(entry.body)}`;
  }
}

function contentCell(entry) {
  if (entry.content === "sealed") {
    return element("span", { className: "muted", children: [`sealed, ${entry.bytes} bytes of ciphertext`] });
  }
  const whole = bodyText(entry);
  const cut = whole.length > SHOWN_CHARS;
  const pre = element("pre", { children: [cut ? `${whole.slice(0, SHOWN_CHARS)}…` : whole] });
  const words = entry.content === "opened" ? "opened: decrypted from the signed ciphertext" : "stated by the exporter, not proven";
  const parts = [pre, element("span", { className: `badge ${entry.content}`, children: [words] })];
  if (cut) parts.push(element("span", { className: "muted", children: [` ${whole.length} characters, cut here`] }));
  return element("div", { children: parts });
}

function row(entry) {
  const cell = (label, child) => {
    const made = element("td", { children: [child] });
    made.dataset.label = label;
    return made;
  };
  const checked = "signatures of author and hub, number and root verified by this browser";
  const check = element("span", { className: "check", title: checked, children: ["✓"] });
  check.setAttribute("role", "img");
  check.setAttribute("aria-label", checked);
  return element("tr", {
    children: [
      cell("No.", element("span", { children: [check, ` ${entry.seq}`] })),
      cell("Time stated by the hub", time(entry.hubTs)),
      cell("Author key", short(entry.author)),
      cell("Content", contentCell(entry)),
    ],
  });
}

function showEntries(entries) {
  const body = at("entries");
  const note = at("entries-note");
  let shown = 0;
  const more = (count) => {
    for (const entry of entries.slice(shown, shown + count)) body.append(row(entry));
    shown = Math.min(shown + count, entries.length);
    note.replaceChildren();
    const rest = entries.length - shown;
    if (!rest) return;
    const button = element("button", { children: [`Show ${Math.min(rest, MORE_ROWS)} more`] });
    button.type = "button";
    button.addEventListener("click", () => more(MORE_ROWS));
    note.append(`${shown} of ${entries.length} entries are shown; all of them were verified. `, button);
  };
  body.replaceChildren();
  more(ROWS);
}

function facts(rows) {
  at("facts").replaceChildren(
    ...rows.flatMap(([name, value]) => [
      element("dt", { children: [name] }),
      element("dd", { children: Array.isArray(value) ? value : [value] }),
    ]),
  );
}

const ranges = (log) => log.runs.map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`)).join(", ");

function claims(report, whose) {
  const lines = [
    "Who signed: each message was signed by the key that is shown as its author.",
    `Who accepted: ${whose} signed a receipt for each of them.`,
    "Position and order: each entry has exactly this number in its log, under a root that the hub signed.",
  ];
  for (const log of report.logs) {
    const end = `of the first ${log.size} entries of log ${log.label.slice(0, 16)}`;
    if (log.complete) lines.push(`Completeness: all ${end} are here, none is missing.`);
    else if (log.runs.length === 1) lines.push(`Completeness: ${ranges(log)} ${end} are here, with none missing inside that range.`);
    else lines.push(`Completeness: ${ranges(log)} ${end} are here; others between them were left out.`);
    if (log.latest > log.size) lines.push(`Growth: the log only grew from ${log.size} to ${log.latest} entries.`);
  }
  if (report.entries.some((entry) => entry.content === "opened")) {
    lines.push("Content: what is marked as opened is what the signed ciphertext decrypts to.");
  }
  return lines;
}

function limits(report) {
  const has = (content) => report.entries.some((entry) => entry.content === content);
  const lines = [
    "Times are stated by the hub. The order of the entries is proven, the clock is not.",
    "Names of people are not part of it: an author is a key.",
    "Entries outside of the ranges above are not shown, and nothing is claimed about them.",
    "That the hub shows everybody the same log: compare the checkpoint with another reader, or with a witness.",
  ];
  if (report.logs.length > 1 || report.logs.some((log) => log.epoch > 0n)) {
    lines.push("That the stream has no entries in epochs that are not listed.");
  }
  if (has("sealed")) lines.push("What sealed entries say: only their ciphertext is here.");
  if (has("opened")) lines.push("That an author did not prepare a ciphertext with two openings: the cipher does not bind a ciphertext to one key.");
  if (has("stated")) lines.push("That the plaintext of entries marked as stated is what was sealed: the exporter says so.");
  if (report.outside.length) lines.push(`Proofs by others that the file carries (${[...new Set(report.outside)].join(", ")}) were not checked here.`);
  const unknown = report.logs.reduce((sum, log) => sum + log.unknownWitnesses, 0);
  if (unknown) lines.push(`${unknown} witness signatures on checkpoints are by keys that this page does not have.`);
  lines.push("That this page is unaltered: whoever can change the page can change its verifier. Save the evidence and check it with a verifier of your own.");
  return lines;
}

const list = (id, lines) => at(id).replaceChildren(...lines.map((line) => element("li", { children: [line] })));

function clear() {
  // Nothing of the exporter's text stays where something was found to be wrong.
  for (const id of ["entries", "facts", "proves", "limits", "entries-note"]) at(id).replaceChildren();
  at("title").textContent = "Evidence";
}

function show(report, origin, pinText) {
  const typed = origin === "typed";
  const hub = `hub ${report.hubId.slice(0, 16)}…`;
  const whose = typed ? `the hub with the key that you gave (${hub})` : `${hub}, by the key that the exporter gave,`;
  const count = `${report.entries.length} ${report.entries.length === 1 ? "entry" : "entries"}`;
  if (typed) {
    setMark("good", "Verified by this browser", `${count}: signatures, receipts, order and completeness, against the key that you gave.`);
  } else {
    setMark(
      "partly", "Verified by this browser, with the exporter's key",
      `${count}: all signatures and proofs fit together. Whether the key is that of the hub you mean, only you can tell: enter the key that its operator published.`,
    );
  }
  at("title").textContent = report.streamName === null ? "Evidence" : `Evidence: ${visible(report.streamName)}`;
  const authors = [...new Set(report.entries.map((entry) => entry.author))];
  const rows = [
    ["Stream", report.streamName === null ? "not named" : visible(report.streamName)],
    ["Entries", `${report.entries.length}, by ${authors.length} author ${authors.length === 1 ? "key" : "keys"}`],
    ["Hub", full(report.hubId)],
    [typed ? "Key, given by you" : "Key, given by the exporter", full(pinText.trim())],
    ["Hub keys that count", report.signers.map(full)],
  ];
  for (const log of report.logs) {
    rows.push([`Log, entries ${ranges(log)}`, [full(log.label), element("div", { children: [`checkpoint at ${log.size} entries, root `, full(log.root)] })]]);
  }
  rows.push(["SHA-256 of the file", full(report.sha256)]);
  facts(rows);
  list("proves", claims(report, whose));
  list("limits", limits(report));
  showEntries(report.entries);
  at("proves-title").textContent = "It proves";
  const stated = report.entries.some((entry) => entry.content === "stated");
  const except = stated ? ", except for the content that is marked as stated" : "";
  at("who").textContent = `Everything below was verified by this browser${except}.`;
}

function carried() {
  const decoded = atob(at("evidence").textContent.trim());
  return Uint8Array.from(decoded, (character) => character.charCodeAt(0));
}

let turn = 0;

async function check(data, pinText, origin) {
  turn += 1;
  const mine = turn;
  const pin = parsePin(pinText);
  if (pin === null) {
    at("pin-note").textContent = "This is not a key: 64 hex digits, perhaps with ed25519: before them.";
    at("pin").setAttribute("aria-invalid", "true");
    return;
  }
  at("pin").removeAttribute("aria-invalid");
  at("pin-note").textContent = origin === "typed" ? "Given by you." : "Given by the exporter of this page. Replace it by the key that you have from the operator of the hub.";
  setMark("working", "Verifying…", "This browser checks every signature and proof.");
  try {
    const report = await verifyEvidence(data, pin, (count) => {
      if (mine === turn) at("mark-detail").textContent = `${count} entries checked.`;
    });
    if (mine === turn) show(report, origin, pinText);
  } catch (error) {
    if (mine !== turn) return;
    clear();
    if (!(error instanceof Fault)) {
      setMark("unknown", "Not verified", `The verifier of this page failed: ${error}. Check the file with another one.`);
      return;
    }
    const other = error.code === "HUB";
    at("who").textContent = "Nothing of the evidence is shown, because verification failed.";
    const reason = error.message.charAt(0).toUpperCase() + error.message.slice(1);
    setMark("bad", other ? "FAILED: another hub" : "Verification FAILED", `${reason} (E.EVIDENCE.${error.code})`);
  }
}

function save(data) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([data], { type: "application/cbor" }));
  link.download = "evidence.veen-evidence";
  link.click();
  URL.revokeObjectURL(link.href);
}

async function start() {
  document.body.dataset.js = "yes";
  const lack = await missingSupport();
  if (lack !== null) {
    setMark("unknown", "Not verified: this browser cannot do it", `${lack}. Use a current Chromium or Firefox, or check the file with veen verify.`);
    return;
  }
  let data;
  try {
    data = carried();
  } catch {
    clear();
    setMark("bad", "Verification FAILED", "The evidence in this page is damaged (E.EVIDENCE.KIND)");
    return;
  }
  at("pin-form").hidden = false;
  at("save-line").hidden = false;
  at("save").addEventListener("click", () => save(data));
  const given = at("pin").defaultValue;
  at("pin-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const typed = at("pin-mine").checked || at("pin").value.trim() !== given;
    check(data, at("pin").value, typed ? "typed" : "exporter");
  });
  at("pin-mine").addEventListener("change", () => {
    check(data, at("pin").value, at("pin-mine").checked ? "typed" : "exporter");
  });
  await check(data, given, "exporter");
}

start();
