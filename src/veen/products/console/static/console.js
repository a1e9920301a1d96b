// The console in the browser: verification by WebCrypto with veen-verify.js. Pages are complete without this script.
// Text goes into the page by textContent alone.

import {
  Fault, checkInclusion, ed25519Verify, hex, missingSupport, parsePin, readInclusionProof, readReceipt, receiptDigest,
  unhex, verifyEvidence,
} from "./veen-verify.js";
import { Missing, verifyObject } from "./veen-objects.js";

const MAX_FILE_BYTES = 64 * 1024 * 1024;
const at = (id) => document.getElementById(id);

function tell(target, kind, text) {
  target.hidden = false;
  target.className = `who ${kind}`;
  target.dataset.state = kind;
  target.textContent = `${{ good: "✓", bad: "✕" }[kind] ?? "?"} ${text}`;
}

async function judged(target, work) {
  const lack = await missingSupport();
  if (lack !== null) {
    tell(target, "unknown", `Verified by nobody: ${lack}.`);
    return;
  }
  tell(target, "working", "This browser verifies…");
  try {
    tell(target, "good", `Verified by this browser: ${await work()}`);
  } catch (error) {
    if (error instanceof Missing) tell(target, "unknown", `Verified by nobody: it needs ${error.message}; add it as another object.`);
    else if (error instanceof Fault) tell(target, "bad", `Verification by this browser FAILED: ${error.message} (${error.code})`);
    else tell(target, "unknown", `Verified by nobody: the verifier of this page failed: ${error}`);
  }
}

const require_ = (good, what) => {
  if (!good) throw new Fault("RECEIPT", what);
};

async function signedBy(keys, receipt) {
  const digest = await receiptDigest(receipt);
  for (const key of keys) if (await ed25519Verify(key, digest, receipt.hubSig)) return key;
  throw new Fault("SIG", "a receipt is signed by no pinned key");
}

async function checkProof({ proof, receipt, rootReceipt, keys, seq, size }) {
  const pinned = keys.split(",").filter(Boolean).map(unhex);
  const entry = readReceipt(unhex(receipt));
  const root = readReceipt(unhex(rootReceipt));
  require_(entry.streamSeq === BigInt(seq), "the receipt is for another entry");
  require_(root.streamSeq === BigInt(size), "the receipt of the root is for another size");
  require_(hex(entry.label) === hex(root.label), "the receipts are of two logs");
  const signer = await signedBy(pinned, entry);
  await signedBy(pinned, root);
  await checkInclusion(readInclusionProof(unhex(proof)), entry.leafHash, entry.streamSeq, root.streamSeq, root.mmrRoot);
  return `entry ${entry.streamSeq} stands under the root of ${root.streamSeq} entries; hub key ${hex(signer).slice(0, 8)}… signed both receipts.`;
}

const EVIDENCE = [0x84, 0x6d, ...new TextEncoder().encode("veen-evidence")];
const isEvidence = (data) => EVIDENCE.every((byte, index) => data[index] === byte);

async function contentOf(file) {
  if (file.size > MAX_FILE_BYTES) throw new Fault("SIZE", `${file.name}: the file is too large`);
  return new Uint8Array(await file.arrayBuffer());
}

async function checkFiles(files, typed, pinned) {
  const [file, ...others] = files;
  if (file === undefined) throw new Fault("FORM", "choose a file first");
  const pin = parsePin(typed || pinned.split(",")[0]);
  if (pin === null) throw new Fault("FORM", "the key has 64 hex digits, perhaps with ed25519: before them");
  const whose = typed ? "the key that you gave" : "the key that this console has pinned";
  const data = await contentOf(file);
  if (isEvidence(data)) {
    const report = await verifyEvidence(data, pin, () => {});
    return `evidence file with ${report.entries.length} entries, by ${whose}.`;
  }
  const keys = typed ? [pin.key] : pinned.split(",").filter(Boolean).map(unhex);
  const { kind, checks } = await verifyObject(data, await Promise.all(others.map(contentOf)), keys);
  return `${kind}, by ${whose}: ${checks.join("; ")}.`;
}

const proofButton = at("browser-verify");
if (proofButton !== null) {
  proofButton.hidden = false;
  proofButton.addEventListener("click", () => judged(at("browser-verdict"), () => checkProof(at("browser").dataset)));
}

const fileButton = at("file-verify");
if (fileButton !== null) {
  const verifyFiles = (files) =>
    judged(at("file-verdict"), () => checkFiles(files, at("verify-key").value.trim(), fileButton.dataset.keys));
  fileButton.hidden = false;
  fileButton.addEventListener("click", () => verifyFiles([...at("verify-file").files, ...at("verify-related").files]));
  // A dropped file is verified at once, by this browser; further ones are what its check needs.
  const zone = at("drop");
  at("drop-hint").hidden = false;
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    verifyFiles([...event.dataTransfer.files]);
  });
}

// --- the live tail: asks the twin of the page for what came after the last row, and adds rows; text only -----------

const POLL_MS = 2000;
const MAX_ROWS = 5000;

function cell(row, text, kind) {
  const td = row.insertCell();
  td.className = kind;
  td.textContent = text;
  return td;
}

function bodyCell(row, entry) {
  const td = row.insertCell();
  const whole = entry.decoded ?? entry.body ?? entry.body_hex;
  if (entry.error !== null && entry.error !== undefined) td.textContent = `not opened: ${entry.error}`;
  else if (whole === null || whole === undefined) td.textContent = "sealed: no read key";
  else {
    const pre = document.createElement("pre");
    // Characters that steer text are spelled out, as the server does it.
    pre.textContent = `${entry.decoded === null && entry.body === null ? "hex " : ""}${spelled(whole)}${(entry.decoded === null ? entry.body_cut : entry.decoded_cut) ? "…" : ""}`;
    td.append(pre);
  }
}

const spelled = (text) =>
  text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (mark) =>
    `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);

class Tail {
  constructor(button) {
    this.button = button;
    this.rows = at("entry-rows");
    this.state = at("tail-state");
    this.next = Number(button.dataset.from);
    this.hidden = 0;
    this.timer = null;
  }

  toggle() {
    const on = this.timer === null;
    this.button.setAttribute("aria-pressed", String(on));
    this.button.textContent = on ? "Pause" : "Follow new entries";
    if (on) this.ask();
    else {
      clearTimeout(this.timer);
      this.timer = null;
      this.state.textContent = "Paused.";
    }
  }

  async ask() {
    this.timer = setTimeout(() => {}, 0);
    const { twin, epoch } = this.button.dataset;
    const query = new URLSearchParams({ from: this.next, count: 200, ...(epoch ? { epoch } : {}) });
    let wait = POLL_MS;
    try {
      const answer = await fetch(`${twin}?${query}`, { cache: "no-store" });
      const data = await answer.json();
      if (!answer.ok) {
        this.stop(`${data.error?.diverged ? "Verification FAILED" : "The console cannot go on"}: ${data.error?.cause} (${data.error?.code})`);
        return;
      }
      for (const entry of data.entries) this.add(entry);
      if (data.entries.length === 200) wait = 0;
      const older = this.hidden ? `, ${this.hidden} older rows hidden` : "";
      this.state.textContent = `Following: ${data.head} entries, each verified by this console${older}.`;
    } catch (error) {
      this.state.textContent = "The console does not answer; trying again.";
    }
    if (this.timer !== null) this.timer = setTimeout(() => this.ask(), wait);
  }

  add(entry) {
    const row = this.rows.insertRow();
    row.className = "new";
    const number = cell(row, "", "number");
    const link = document.createElement("a");
    const { entry: place, epoch } = this.button.dataset;
    link.href = `${place}${entry.seq}${epoch ? `?epoch=${epoch}` : ""}`;
    link.textContent = entry.seq;
    number.append(link);
    cell(row, entry.time, "nowrap");
    const author = cell(row, "", "nowrap");
    const key = document.createElement("code");
    key.title = entry.client_id;
    key.textContent = `${entry.client_id.slice(0, 8)}…${entry.client_id.slice(-4)}`;
    author.append(key);
    cell(row, entry.msg_bytes, "number");
    bodyCell(row, entry);
    this.next = entry.seq + 1;
    while (this.rows.rows.length > MAX_ROWS) {
      this.rows.deleteRow(0);
      this.hidden += 1;
    }
  }

  stop(words) {
    this.timer = null;
    this.button.hidden = true;
    this.state.className = "who bad";
    this.state.textContent = `✕ ${words}`;
  }
}

const tailButton = at("tail");
if (tailButton !== null) {
  const tail = new Tail(tailButton);
  tailButton.hidden = false;
  tailButton.addEventListener("click", () => tail.toggle());
}
