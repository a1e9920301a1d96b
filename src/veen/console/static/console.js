// The console in the browser: verification by WebCrypto with veen-verify.js. Pages are complete without this script.
// Text goes into the page by textContent alone.

import {
  Fault, checkInclusion, ed25519Verify, hex, missingSupport, parsePin, readInclusionProof, readReceipt, receiptDigest,
  unhex, verifyEvidence,
} from "./veen-verify.js";

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
    if (error instanceof Fault) tell(target, "bad", `Verification by this browser FAILED: ${error.message} (${error.code})`);
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

async function checkFile(file, typed, pinned) {
  if (file === undefined) throw new Fault("FORM", "choose a file first");
  if (file.size > MAX_FILE_BYTES) throw new Fault("SIZE", "the file is too large");
  const pin = parsePin(typed || pinned.split(",")[0]);
  if (pin === null) throw new Fault("FORM", "the key has 64 hex digits, perhaps with ed25519: before them");
  const report = await verifyEvidence(new Uint8Array(await file.arrayBuffer()), pin, () => {});
  const whose = typed ? "the key that you gave" : "the key that this console has pinned";
  return `${report.entries.length} entries of the evidence file, by ${whose}.`;
}

const proofButton = at("browser-verify");
if (proofButton !== null) {
  proofButton.hidden = false;
  proofButton.addEventListener("click", () => judged(at("browser-verdict"), () => checkProof(at("browser").dataset)));
}

const fileButton = at("file-verify");
if (fileButton !== null) {
  fileButton.hidden = false;
  fileButton.addEventListener("click", () =>
    judged(at("file-verdict"), () => checkFile(at("verify-file").files[0], at("verify-key").value.trim(), fileButton.dataset.keys)));
}
